"""Rerankers under test, each in a process of its own, with the same cross-encoder and dtype."""
