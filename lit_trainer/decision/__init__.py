"""From probabilities to labels: thresholds, calibration and the rule that is saved with a model."""
