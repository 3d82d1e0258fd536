"""What the recorder calls its files, for those who read them without torch."""

COST_FILE = "cost.json"
TEST_SCORES = "scores/test.parquet"
