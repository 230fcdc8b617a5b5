"""The text decoder of every family: a Llama-shaped stack over packed tokens, in C where possible, else in torch."""
