"""Bookkeeping of what is cached and what goes first when room is needed. No tensors, no torch."""
