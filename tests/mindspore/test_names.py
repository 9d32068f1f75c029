"""Every name that is offered as MindSpore's means what MindSpore's means: values, errors, arguments and defaults.

`recorded.npz` and `signatures.json` are what MindSpore 2.10.0 itself says, see `record.py`.
"""

from __future__ import annotations

import inspect
import json
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoshard as ash
import autoshard.mindspore as ms
from autoshard.mindspore import nn, ops
from autoshard.util.errors import AutoshardError, ShapeError
from tests.mindspore.cases import DOCUMENTED, LINES, RAISES, names
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


HELD = [name for name, one in names(ms, nn, ops).items() if isinstance(one, ms.Tensor)]
# What a line says of a traced value is known while tracing, so that the trace holds no tensor; or needs its numbers.
NOT_TRACED = ("shape", "size", "rank", "ndim", "dtype", "DType", "asnumpy", "share(", "measured(", "grad(", "Parameter")
# Traced, these are refused: what numpy and MindSpore mean by them differs.
AMBIGUOUS = ("x.max(1)", "x.min(0)", "whole.mean()", "whole.std()")


def operands(line: str) -> list[str]:
    """The tensors that a line uses, other than by the names of a lambda's arguments."""
    return [name for name in HELD if re.search(rf"\b{name}\b", line)]


@pytest.mark.parametrize(
    "line", [one for one in LINES if operands(one) and not any(part in one for part in NOT_TRACED)]
)
def test_a_traced_line_says_the_same_or_is_refused(line: str) -> None:
    """In a compiled cell a name means what it means outside of one."""
    known, used = names(ms, nn, ops), operands(line)
    given = [known[name] for name in used]
    try:
        traced = ash.trace(lambda *held: eval(line, known | dict(zip(used, held, strict=True))), *given)  # noqa: S307
    except (AutoshardError, AttributeError) as error:
        refused = (
            line in AMBIGUOUS or isinstance(error, AttributeError) or str(error).startswith(("tracing", "indexing"))
        )
        assert refused, error
        return
    got, want = flat(traced(*given)), recorded()[line]
    assert [(one.shape, one.dtype) for one in got] == [(one.shape, one.dtype) for one in want]
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)


def test_what_differs_between_numpy_and_mindspore_is_refused() -> None:
    for line in AMBIGUOUS:
        with pytest.raises(ShapeError, match=r"numpy (means|does not)"):
            ash.trace(lambda x, whole, line=line: eval(line), np.ones((3, 4), "f4"), np.ones(4, "i4"))  # noqa: S307


@pytest.mark.parametrize("line", DOCUMENTED)
def test_values_are_those_of_the_documentation(line: str) -> None:
    """Where MindSpore has no kernel on CPUs, or has not evaluated the line."""
    held = names(ms, nn, ops)
    got = flat(evaluated(line))[0]
    want = DOCUMENTED[line]({name: np.asarray(held[name]) for name in HELD})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=3e-6)


# Of arrays alone.
OUTSIDE = ("trained(", "numel", "sequence_mask(lab)", ".repeat(")


@pytest.mark.parametrize(
    "line", [one for one in DOCUMENTED if not any(part in one for part in (*NOT_TRACED, *OUTSIDE))]
)
def test_a_documented_line_says_the_same_on_ranks(line: str) -> None:
    known, used = names(ms, nn, ops), operands(line)
    given = tuple(known[name] for name in used)
    traced = ash.trace(lambda *held: eval(line, known | dict(zip(used, held, strict=True))), *given)  # noqa: S307
    with np.errstate(all="ignore"):
        got, want = flat(ash.plan(traced, devices=2).run(*given)), flat(evaluated(line))
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)


# Names that no line can say the value of, and the tests that say what they do.
DO = {
    "mindspore/test_settings.py": (
        "Callback EarlyStopping LambdaCallback "
        "get_algo_parameters reset_algo_parameters set_algo_parameters set_auto_parallel_context "
        "reset_auto_parallel_context value_and_grad"
    ),
    "mindspore/test_layers.py": (
        "CTCLoss Conv1dTranspose Conv2dTranspose Conv3d Dropout1d Dropout2d Dropout3d EmbeddingLookup GRU GRUCell "
        "HyperMap LSTM LSTMCell Map MultiheadAttention MultitypeFuncGraph RNN RNNCell StandardNormal Transformer "
        "TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer UniformReal "
        "Upsample ctc_loss partial"
    ),
    "mindspore/test_loss_scale.py": (
        "DynamicLossScaleManager DynamicLossScaleUpdateCell FixedLossScaleManager FixedLossScaleUpdateCell "
        "LossScaleManager"
    ),
    "mindspore/test_parallel.py": (
        "AutoParallel Layout Metric Model load_distributed_checkpoint merge_sliced_parameter rank_list_for_transform "
        "reshard shard transform_checkpoint_by_rank transform_checkpoints load_checkpoint save_checkpoint "
        "dtype_to_nptype"
    ),
    "mindspore/test_split.py": "FlashAttentionScore jit",
    "mindspore/test_stages.py": "GradAccumulationCell PipelineCell lazy_inline",
    "test_context.py": "get_auto_parallel_context get_context set_context get_group_size get_rank init release",
    "test_model.py": "Cell CheckpointConfig History LossMonitor ModelCheckpoint TimeMonitor load_param_into_net",
    "ops/test_primitive.py": "Primitive",
}


def test_every_name_is_held_to_mindspore() -> None:
    """0 silent differences: each name that is offered is in a line that MindSpore evaluated, or has its own tests."""
    lines = "\n".join([*LINES, *RAISES, *DOCUMENTED])
    told = {name: file for file, held in DO.items() for name in held.split()}
    for name, file in told.items():
        assert re.search(rf"\b{name}\b", (HERE.parent / file).read_text()), f"{file} says nothing of {name}"
    free = [one for _, one in offered() if one not in told and not re.search(rf"\b{re.escape(one)}\b", lines)]
    assert set(free) <= {"Tensor"}  # T in lines


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
    "autoshard.mindspore.train": "mindspore.train",
    "autoshard.mindspore.parallel": "mindspore.parallel",
    "autoshard.mindspore.communication": "mindspore.communication",
    "autoshard.mindspore.common.initializer": "mindspore.common.initializer",
}
# MindSpore's module of it is another one.
ELSEWHERE = {
    "FlashAttentionScore": "mindspore.ops.operations.nn_ops",
    "AutoParallel": "mindspore.parallel.auto_parallel",
}
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
    if hasattr(kind, "made_with"):
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


def test_the_table_of_names_is_current() -> None:
    from tests.mindspore import table

    assert table.page() == table.PAGE.read_text(), "run python -m tests.mindspore.table"


def test_old_names_still_work_and_name_the_new_ones() -> None:
    with pytest.warns(DeprecationWarning, match="autoshard.Model is autoshard.mindspore.Model now"):
        assert ash.Model is ms.Model
    assert ash.nn.Cell is nn.Cell and ash.nn.Dropout is nn.Dropout and ash.ops.LayerNorm is ops.LayerNorm
    with pytest.raises(AttributeError, match="does not offer MindSpore's 'Conv2DTranspos'; did you mean 'Conv2DTrans"):
        _ = ops.Conv2DTranspos


@pytest.mark.parametrize(
    ("page", "name", "instead"),
    [(nn, "Conv3dTranspose", "from_torch"), (nn, "ReduceLROnPlateau", "a rate for each step")],
)
def test_what_is_not_offered_says_what_to_take_instead(page: Any, name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"does not offer MindSpore's '{name}'; .*{instead}"):
        getattr(page, name)
