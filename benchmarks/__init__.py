"""Benchmarks against named peers. `python -m benchmarks --help` lists them; results live in `benchmarks/results`."""
