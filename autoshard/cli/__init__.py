"""The command `autoshard`: `main` is its entry. Each command is a function in a module of this folder.

Commands are loaded when one is run: ranks that take something else from here start without them.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line in `sys.argv` and end the process with its exit code."""
    from autoshard.cli import commands

    commands.main()
