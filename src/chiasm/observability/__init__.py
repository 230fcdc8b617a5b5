"""What can be seen of a request and of a process: receipts, metric names, logs. Knows no wire and no engine."""
