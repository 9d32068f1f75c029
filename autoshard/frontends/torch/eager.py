"""Modules of the package transformers that leave out what they do without torch.compile, as they are without it.

    if attention_mask is None and not is_torchdynamo_compiling():
        attention_mask = torch.ones(...)

torch.export says that it compiles, and some models fail then, where they miss what they left out. What is captured is
a module as it runs by itself: where a capture fails, it is done once more with another answer in the modules it failed
in.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

_ASKED = "is_torchdynamo_compiling"


def as_not_compiled(capture: Callable[[], Any]) -> Any:
    """What `capture` makes, as if it did not compile where it fails else.

    Raises:
        Exception: what `capture` raises, where no module asks whether it compiles.
    """
    try:
        return capture()
    except Exception as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if _may_leave_out(frame.f_globals)]
        asking = {id(frame.f_globals): frame.f_globals for frame in frames}
        if not asking:
            raise
        with ExitStack() as stack:
            for variables in asking.values():
                stack.enter_context(patch.dict(variables, {_ASKED: lambda: False}))
            return capture()


def _may_leave_out(variables: dict[str, Any]) -> bool:
    """Whether a module of these variables asks."""
    return _ASKED in variables and str(variables.get("__name__")).startswith("transformers.")
