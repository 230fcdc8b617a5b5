"""What goes wrong on purpose: each fault of the matrix is met by one request of a running fleet, and judged.

Faults come in by wrappers that only this room puts around transports and workers. Nothing in a normal server knows of
them. What a fleet is made of, `chiasm.launch` decides; how it recovers, `chiasm.routing`.
"""
