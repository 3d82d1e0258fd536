"""Several runs of one recipe, each in a process of its own: a comparison of variants, and a search for settings."""
