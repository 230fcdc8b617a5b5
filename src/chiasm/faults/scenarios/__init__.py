"""What can go wrong, one file per group, and what is to come of it."""
