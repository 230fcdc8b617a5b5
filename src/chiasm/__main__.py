"""`python -m chiasm` is the `chiasm` command."""

from chiasm.cli.app import main

main()
