"""What can be seen of a request and of a process: receipts, metric names, logs. Knows nothing of the wire or of engines."""
