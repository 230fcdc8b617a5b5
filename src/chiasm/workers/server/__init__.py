"""The HTTP server of a worker process, around any `Worker`. Its bodies are those of `chiasm.protocol.wire`."""

from chiasm.workers.server.app import WorkerApp, WorkerServerLimits, create_worker_app

__all__ = ["WorkerApp", "WorkerServerLimits", "create_worker_app"]
