"""StableHLO's tokens, which order effects and hold nothing: create_token and after_all."""

from __future__ import annotations

from autoshard.core.tensortype import TOKEN
from autoshard.ops.registry import operator


@operator("CreateToken", rule=None, shape=lambda: ((),), dtype=TOKEN)
def create_token():
    """A token that nothing has to happen before."""
    return None


@operator("AfterAll", rule=None, shape=lambda *_: ((),), dtype=TOKEN)
def after_all(*tokens):
    """A token that comes after all the given ones."""
    return None
