"""One file per model family: its picture tokens, positions, weights and vision call. `registry.py` picks by model type."""
