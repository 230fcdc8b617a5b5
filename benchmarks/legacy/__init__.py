"""What a single endpoint replaces: services before and behind a Hugging Face model server, with an HTTP hop between.

Built as such stacks usually are, and kindly: keep-alive connections, a fast tokenizer off the event loop, pixels as
bytes instead of lists of numbers, one warm process each.
"""
