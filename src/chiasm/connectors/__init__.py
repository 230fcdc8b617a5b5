"""How tensors get from the stage that makes them to the stage that uses them.

Connectors move bytes and check them; they know neither torch nor who is on the other side.
"""
