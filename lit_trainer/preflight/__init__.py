"""What keeps training from working, looked for before it begins; a file for each family of checks."""
