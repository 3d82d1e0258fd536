"""From a source of rows to the batches of each optimizer step."""
