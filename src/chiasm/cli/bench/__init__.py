"""`chiasm bench`: its commands, their options, and what they show while they run."""
