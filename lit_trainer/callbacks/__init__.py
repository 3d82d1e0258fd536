"""What watches and steers a run, one callback per file."""
