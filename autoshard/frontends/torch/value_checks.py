"""Checks of values in a module's own code, taken for passed while it is captured.

    assert (ids >= 0).all()
    if labels.max() >= self.classes:
        raise ValueError("...")

Nothing knows then what tensors hold, and what such a line does if all is well is known: it goes on. Whether a tensor is
asked in such a line is told by the place in the source where Python asks. Branches that do anything else stay refused.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from types import FrameType
from typing import Any

from autoshard.frontends.torch.patch import WHILE_CAPTURING

_WARNINGS = frozenset(("warn", "warning", "warning_once"))
"""Calls that only tell people something."""

_NEAR = 3
"""How many instructions, a jump with a large argument among them, lie between an answer and what asks for it."""

Position = tuple[int | None, int | None, int | None, int | None]


def check_functions() -> dict[Any, Callable]:
    """What stands for asking a tensor whether it holds."""
    import torch

    return {torch.Tensor.__bool__: _holds}


def _holds(tensor: Any) -> bool:
    passed = _passed()
    return bool(tensor) if passed is None else passed


@WHILE_CAPTURING.replaces("torch:SymBool", "__bool__")
def _asked(own: Callable, inside: Callable[[], bool]) -> Callable:
    """The same for what is made of `tensor.item()`."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    def __bool__(self: Any) -> bool:
        try:
            return own(self)
        except GuardOnDataDependentSymNode:
            passed = _passed() if inside() else None
            if passed is None:
                raise
            return passed

    return __bool__


def _passed() -> bool | None:
    """What the line being run takes for passed; None where it is no check."""
    frame = _asking(sys._getframe(1))
    if frame is None:
        return None
    checks, at = _checks(frame.f_code.co_filename), frame.f_lasti // 2
    # What a jump asks comes from the instruction before it; the jump's own place may be that of the whole statement.
    own, *before = reversed(list(frame.f_code.co_positions())[max(at - _NEAR, 0) : at + 1])
    return next((checks[place] for place in (*before, own) if place in checks), None)


def _asking(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of a module's code, not of what captures it."""
    while frame is not None and is_capturing(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_capturing(file: str) -> bool:
    """Whether code captures modules, not of theirs."""
    return file.startswith(_capturing())


@cache
def _capturing() -> tuple[str, ...]:
    import torch

    folder = os.path.dirname(torch.__file__)
    here = os.path.dirname(os.path.abspath(__file__))
    parts = ("_export", "overrides.py", "fx", "utils", "_dynamo", "__init__.py", "_tensor.py")
    return (here, *(os.path.join(folder, part) for part in parts))


@lru_cache(maxsize=256)
def _checks(file: str) -> dict[Position, bool]:
    """By the place of each question of a file's checks, the answer with which they pass."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    return {place: passed for node in ast.walk(tree) for place, passed in _questions(node)}


def _questions(node: ast.AST) -> Iterator[tuple[Position, bool]]:
    if isinstance(node, ast.Assert):
        yield from _answers(node.test, True)
    elif isinstance(node, ast.If) and _tells(node.body):
        yield from _answers(node.test, False)
    elif isinstance(node, ast.If) and _tells(node.orelse):
        yield from _answers(node.test, True)


def _answers(test: ast.expr, passed: bool) -> Iterator[tuple[Position, bool]]:
    """The answers of the parts of a condition with which it is `passed`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _answers(test.operand, not passed)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _answers(part, passed)
    else:
        yield (test.lineno, test.end_lineno, test.col_offset, test.end_col_offset), passed


def _tells(body: list[ast.stmt]) -> bool:
    """Whether statements end in an error, or do nothing but warn."""
    return bool(body) and (isinstance(body[-1], ast.Raise) or all(map(_warns, body)))


def _warns(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _WARNINGS
