"""What several gateways over one fleet know together, and how they go on when they cannot ask each other.

A store holds it: in this process by default, or a Redis server. Nothing waits for a store that is gone: every call has
a short deadline, and a gateway that has lost it works with what it knows until it is back.
"""
