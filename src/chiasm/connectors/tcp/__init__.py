"""Tensors between hosts: a server thread per producing process, pooled connections per consuming one.

No encryption: for networks on which only the workers and those they trust can listen.
"""
