"""Workers of other processes, over HTTP (TCP or a Unix socket): says what they say, or that they cannot be reached."""

from chiasm.routing.remote.worker import RemoteWorker

__all__ = ["RemoteWorker"]
