"""`chiasm bench`: the command, its options, and what it shows while it runs."""
