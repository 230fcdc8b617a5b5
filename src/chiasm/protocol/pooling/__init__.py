"""Embedding, classifying and scoring as types: the contract with pooling workers (`work`) and the HTTP bodies."""
