"""The `chiasm` command: one file per subcommand; each parses, calls, prints. Nothing here is needed by other rooms.

Commands import what they need when they run: `chiasm --help` must not wait for an engine.
"""
