"""`python -m autoshard` is the command `autoshard`."""

from autoshard.cli import main

main()
