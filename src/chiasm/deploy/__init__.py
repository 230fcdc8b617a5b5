"""Manifests for running Chiasm elsewhere: Docker Compose, Kubernetes, KServe. They are written, never applied.

What runs where and with which command is in `plan`; each form turns that into its own words.
"""
