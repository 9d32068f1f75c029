"""The command line, called in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from autoshard.cli import main


@pytest.fixture
def cli(monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
    """`cli("plan", ...)` gives the exit code and what went to stdout and stderr, of child processes too."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("AUTOSHARD_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["autoshard", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capfd.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call
