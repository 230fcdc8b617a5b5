"""One metric a file, each with its formula. A metric of a request is None where it has no value for it.

A latency of a request that did not finish has no value and is no reason to leave the request out: errors, time-outs and
cancellations are counted beside the latencies, and miss every objective of goodput.
"""
