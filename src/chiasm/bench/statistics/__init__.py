"""What a set of values comes to, how sure that is, and whether it may be summed up at all."""
