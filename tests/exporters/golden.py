"""Golden texts: compare with the file, or write it where AUTOSHARD_REWRITE_GOLDEN=1 asks for that."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "golden"
REWRITE = os.environ.get("AUTOSHARD_REWRITE_GOLDEN") == "1"


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def check(name: str, text: str) -> None:
    """The text must be that of the file."""
    if REWRITE:
        (FOLDER / name).write_text(text, encoding="utf-8")
    assert text == read(name), f"tests/golden/{name} differs; AUTOSHARD_REWRITE_GOLDEN=1 rewrites it"
