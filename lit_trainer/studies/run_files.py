"""What callbacks call the files that they leave for a study, for those who read them without torch."""

COST_FILE = "cost.json"
TRIAL_FILE = "trial.json"
