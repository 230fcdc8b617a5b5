"""Who callers are, what each tenant may use, and whose request goes next.

Keys are known by their hashes, from settings or from a file that may change while the server runs. Limits and the fair
queue are plain objects over a clock that is handed in. What a path asks for is the gateway's to say.
"""
