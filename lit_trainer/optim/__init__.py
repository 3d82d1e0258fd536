"""Parameter groups and learning-rate schedules, in plain torch."""
