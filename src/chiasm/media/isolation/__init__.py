"""Decoding in processes of their own: a decoder that crashes, hangs or swells is one failed picture, no more."""
