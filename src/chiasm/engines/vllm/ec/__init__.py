"""Embeddings between vLLM servers: announced, kept, pulled, checked, admitted. Knows neither vLLM nor torch."""
