"""Losses that return a sum and the weight it is to be divided by, one per file."""
