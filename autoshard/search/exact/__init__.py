"""TODO."""

from typing import Any

from autoshard.util.moved import former


def __getattr__(name: str) -> Any:
    return former(__name__, name)
