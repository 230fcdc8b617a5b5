"""What a LoRA adapter's files are: where they may lie, whether they fit a model, and their revision. Loads no weights.

Everything is checked here, without torch, before an engine sees a byte. Hostile files end in `AdapterError`.
"""
