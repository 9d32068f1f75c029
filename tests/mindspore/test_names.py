"""Every name that is offered as MindSpore's means what MindSpore's means: values, errors, arguments and defaults.

`recorded.npz` and `signatures.json` are what MindSpore 2.10.0 itself says, see `record.py`.
"""

from __future__ import annotations

import inspect
import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoshard as ash
import autoshard.mindspore as ms
from autoshard.mindspore import nn, ops
from autoshard.mindspore.ops.primitive import PRIMITIVES
from autoshard.util.errors import AutoshardError
from tests.mindspore.cases import LINES, RAISES, names
from tests.mindspore.record import flat

HERE = Path(__file__).parent
SIGNATURES = json.loads((HERE / "signatures.json").read_text())
# Float32 in both, added up in another order.
TOLERANCE = {"rtol": 1e-4, "atol": 3e-6}


@cache
def recorded() -> dict[str, list[np.ndarray]]:
    """What MindSpore made of each line."""
    found: dict[str, dict[int, np.ndarray]] = {}
    with np.load(HERE / "recorded.npz") as file:
        for key in file.files:
            line, _, place = key.rpartition("|")
            found.setdefault(line, {})[int(place)] = file[key]
    return {line: [arrays[i] for i in sorted(arrays)] for line, arrays in found.items()}


def evaluated(line: str, pages: tuple[Any, Any, Any] = (ms, nn, ops)) -> Any:
    with np.errstate(all="ignore"):
        return eval(line, names(*pages))  # noqa: S307


def test_every_line_was_recorded() -> None:
    assert set(recorded()) == set(LINES)


@pytest.mark.parametrize("line", LINES)
def test_values_are_those_of_mindspore(line: str) -> None:
    got, want = flat(evaluated(line)), recorded()[line]
    assert [(one.shape, one.dtype) for one in got] == [(one.shape, one.dtype) for one in want]
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("line", RAISES)
def test_what_mindspore_refuses_is_refused(line: str) -> None:
    with pytest.raises(AutoshardError):
        evaluated(line)


def test_the_other_page_of_operators_says_the_same_or_refuses() -> None:
    """`autoshard.ops` has functions of its own under some of MindSpore's names; none silently means another thing."""
    wrong = []
    # Said on that page: an index outside finds zeros, so that ranks may look up in their own part.
    zeros_outside = ("ops.gather(", "ops.gather_d(")
    for line in (one for one in LINES if one.startswith("ops.") and not one.startswith(zeros_outside)):
        try:
            got = flat(evaluated(line, (ms, nn, ash.ops)))
        except (AutoshardError, AttributeError, TypeError, ValueError):
            continue
        want = recorded()[line]
        if [one.shape for one in got] != [one.shape for one in want] or not all(
            np.allclose(ours, theirs, **TOLERANCE, equal_nan=True) for ours, theirs in zip(got, want, strict=True)
        ):
            wrong.append(line)
    assert wrong == []


# -- arguments

PAGES = {
    "autoshard.mindspore": "mindspore",
    "autoshard.mindspore.nn": "mindspore.nn",
    "autoshard.mindspore.ops": "mindspore.ops",
    "autoshard.mindspore.communication": "mindspore.communication",
    "autoshard.mindspore.common.initializer": "mindspore.common.initializer",
}
# MindSpore's module of it is another one.
ELSEWHERE = {"FlashAttentionScore": "mindspore.ops.operations.nn_ops"}
# Words of ours for values of MindSpore.
SAME = {"f32": "Float32", "i32": "Int32", "valid": "VALID", "()": "None"}


def offered() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        module = import_module(page)
        listed = getattr(module, "__all__", None) or dir(module)
        found += [(page, name) for name in listed if callable(getattr(module, name)) and not inspect.ismodule(name)]
    return found


def arguments(kind: Any) -> list[inspect.Parameter]:
    """Ours, without those that only this package has, which are given by name alone."""
    if inspect.isclass(kind) and kind in PRIMITIVES.values():
        signature = kind.made_with
    else:
        made = kind.__init__ if inspect.isclass(kind) and "__new__" not in vars(kind) else kind
        signature = inspect.signature(made)
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one for one in signature.parameters.values() if one.name not in ("self", "cls") and one.kind not in skipped]


def alike(ours: inspect.Parameter, theirs: list[Any]) -> bool:
    name, default, keyword = theirs
    own = None if ours.default is ours.empty else str(ours.default)
    same = own == default or own is not None and default is not None and default in (SAME.get(own), own.upper())
    return ours.name == name and same and (ours.kind is ours.KEYWORD_ONLY) == keyword


@pytest.mark.parametrize(("page", "name"), offered(), ids=lambda one: str(one).removeprefix("autoshard.mindspore"))
def test_arguments_are_those_of_mindspore(page: str, name: str) -> None:
    """Ours are MindSpore's first ones, in its order, with its defaults; any further ones are given by name alone."""
    kind = getattr(import_module(page), name)
    if isinstance(kind, type) and issubclass(kind, BaseException) or not hasattr(kind, "__module__"):
        return
    known = SIGNATURES[ELSEWHERE.get(name, PAGES[page])]
    assert name in known, f"MindSpore has no {name}"
    theirs = known[name]
    if theirs is None:  # it takes anything, and sorts it out itself
        return
    ours = arguments(kind)
    shared = {one[0] for one in theirs}
    common = [one for one in ours if one.name in shared]
    assert all(one.kind is one.KEYWORD_ONLY for one in ours if one.name not in shared), f"{ours} and {theirs}"
    first = [one for one in theirs if one[0] in {mine.name for mine in common}]
    assert [one[0] for one in theirs[: len(first)]] == [one[0] for one in first], f"{ours} skip some of {theirs}"
    wrong = [(str(mine), given) for mine, given in zip(common, first, strict=True) if not alike(mine, given)]
    assert wrong == []


def test_old_names_still_work_and_name_the_new_ones() -> None:
    with pytest.warns(DeprecationWarning, match="autoshard.Model is autoshard.mindspore.Model now"):
        assert ash.Model is ms.Model
    assert ash.nn.Cell is nn.Cell and ash.nn.Dropout is nn.Dropout and ash.ops.LayerNorm is ops.LayerNorm
    with pytest.raises(AttributeError, match="ours is TransformerBlock"):
        _ = ash.nn.TransformerEncoderLayer
    with pytest.raises(AttributeError, match="does not offer MindSpore's 'Conv2DTranspos'"):
        _ = ops.Conv2DTranspos
