"""Embeddings, scores, ranks, classes: one file per API, and one life of a request for all of them."""
