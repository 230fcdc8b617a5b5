"""What runs next: pure decisions over counts. No torch, no clock, no input or output."""
