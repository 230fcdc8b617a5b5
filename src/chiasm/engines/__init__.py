"""Model executors. `embedded` is PyTorch on this machine; nothing above this room knows which engine it talks to."""
