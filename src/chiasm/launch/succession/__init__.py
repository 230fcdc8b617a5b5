"""How a server gives its listening socket to a successor, so that no connection is refused or lost.

The server that was started first starts its successor itself. When that is ready, the first one stops accepting, serves
what it has, and becomes the keeper: its number stays, so that whoever started the server sees no change. The keeper
does no more than hold the socket, pass signals on, and start the next successor.

Server and keeper talk over a socket pair, in single bytes; its end says that the other one is gone.
"""
