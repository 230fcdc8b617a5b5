"""One file per model family: picture tokens, positions, weights and vision call. `registry.py` picks by model type."""
