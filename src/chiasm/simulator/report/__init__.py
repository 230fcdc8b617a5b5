"""Simulations for people to look at: one HTML page that needs nothing else, and Markdown."""
