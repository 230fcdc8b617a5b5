"""What can be seen of a request and of a process: receipts, metric names, logs, traces, memory. Knows no engine, and
of wires only that of trace collectors."""
