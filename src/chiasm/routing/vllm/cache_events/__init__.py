"""What vLLM says of its prefix cache while it runs: which blocks it has stored, and which it has evicted.

Book-keeping knows who computed a prompt's start, not whether it is still there. vLLM's KV cache events name blocks by
hashes that only it can compute, but a call's own name comes back with them. So a start is tied to the block that it
ends in when its call has ended, and forgotten when that block goes. Where events are missing, book-keeping remains.
"""

from chiasm.routing.vllm.cache_events.follower import Follower
from chiasm.routing.vllm.cache_events.source import EventsAddress, ZmqSource, has_zmq

__all__ = ["EventsAddress", "Follower", "ZmqSource", "has_zmq"]
