"""Where rows come from, one kind per file."""
