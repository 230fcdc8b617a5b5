"""Shared memory of one host: one file per producing process, mapped once by everyone who takes from it.

Why it is built this way: docs/adr/0007-shared-memory-by-leases.md.
"""
