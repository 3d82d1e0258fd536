"""A model, a loss and metrics as a LightningModule, one task per file."""
