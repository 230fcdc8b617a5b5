"""A worker that pools: requests to batches, numbers to answers, all inside one process."""

from chiasm.workers.pooling.worker import LocalPoolingWorker

__all__ = ["LocalPoolingWorker"]
