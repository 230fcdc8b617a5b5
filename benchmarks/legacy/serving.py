"""Runs an application on a free port and says where, as `chiasm serve --json` does."""

import json
import socket

import uvicorn
from starlette.applications import Starlette


def serve(app: Starlette) -> None:
    """Serve until the process is told to end."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    print(json.dumps({"address": address}), flush=True)
    server.run(sockets=[listener])
