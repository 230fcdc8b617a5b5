"""LoRA adapters on the embedded engine: arranged for the decoder, kept within a budget, pinned while in use."""
