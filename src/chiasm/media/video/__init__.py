"""One encoded video: its facts from headers and packets, which frames a model wants, and exactly those frames.

Needs the extra `video`.
"""
