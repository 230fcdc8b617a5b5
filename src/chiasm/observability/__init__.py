"""What can be seen of requests and processes: receipts, metrics, logs, traces, memory. Knows no engine."""
