"""One piece of audio: its facts from headers and packets, and its samples at the rate that a model hears.

Needs the extra `video`.
"""
