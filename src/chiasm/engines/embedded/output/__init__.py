"""From sampled tokens to the events of one choice: text deltas, stop strings, log probabilities, finish reason.

Runs on the engine's thread, once per token and sequence, so the plain path does one dictionary look-up, one
incremental UTF-8 step and one event. Batching of events and sending them is the core's business.
"""
