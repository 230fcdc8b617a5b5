"""Everything that crosses between gateway and workers, as typed, versioned, validated objects.

HTTP is the wire form; a worker in the same process takes the same objects directly. `Worker` is the one interface
the gateway knows an engine by.
"""
