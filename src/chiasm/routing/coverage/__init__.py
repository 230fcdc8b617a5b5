"""What the fleet has computed already: which worker served a prompt's start last, and where embeddings are.

Nothing here is asked of workers: it follows from what they were sent and answered, and from what some of them say that
they have lost. It may be wrong, since caches evict, and being wrong costs time, never an answer: a worker that misses
computes, or says that it cannot.
"""
