"""How a run is executed: precision, strategies, checkpoints."""
