"""Tapes: what they play is what the meaning does; what looks at numbers, or comes from nowhere, breaks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autoshard.core.tensortype import type_of
from autoshard.engines.kernels import Kernels, kernels_of
from autoshard.engines.tape import Tape, told_apart
from autoshard.engines.torch_kernels import CompiledKernels
from autoshard.ops.registry import Operator, lookup, operator, remove

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def _ran(kernels: Kernels, op: Operator, arrays: list[np.ndarray], attrs: dict) -> list[np.ndarray]:
    kinds = [of.dtype for of in op.result_types(tuple(map(type_of, arrays)), attrs)]
    made = kernels.run(op, [torch.from_numpy(one) for one in arrays], attrs, kinds)
    return [kernels.library.to_numpy(one) for one in made]


def _noted(run: Callable, *operands: np.ndarray) -> tuple[tuple, Tape]:
    """What a function of numpy's does on torch, and its tape."""
    kernels = kernels_of("torch")
    space, function = kernels.space, kernels._retarget.function(run)
    raws = [torch.from_numpy(one) for one in operands]
    return kernels.noted(lambda: (space.raw(function(*map(space.asarray, raws))),), raws, largest=1 << 10)


def _played(tape: Tape, made: tuple, *operands: Any) -> np.ndarray:
    """What the tape makes of other operands."""
    play = tape.played(made)
    found = None if play is None else play(*operands)
    assert found is not None
    return found[0].numpy()


# `np` in these functions is the namespace's when they are retargeted.


def twice(x, y):
    z = np.exp(x) + y
    np.sin(x)  # nobody reads it
    return np.exp(x) * z.T


def by_its_sign(x, y):
    return x if bool(x[0, 0] > 0) else y


def by_its_number(x, y):
    return x.reshape(x[0, 0].item(), -1)


def by_a_mask(x, y):
    return x[y > 0]


def with_a_table(x, y):
    return x + np.arange(x.size, dtype=np.float32).reshape(x.shape)


def with_a_large_table(x, y):
    return np.sum(x) + np.sum(x[0, 0] * np.arange(1000.0))


def test_a_tape_calls_once_what_is_called_twice_and_leaves_out_what_nobody_reads() -> None:
    random = np.random.default_rng(0)
    x, y, other = (random.normal(size=(3, 3)).astype(np.float32) for _ in range(3))
    made, tape = _noted(twice, x, y)
    found = _played(tape, made, *map(torch.from_numpy, (other, y)))
    (source, _) = tape.says  # type: ignore[misc]
    assert source.count(" = ") == 4  # exp, add, transpose, multiply
    assert "del " in source
    wanted = np.exp(other) * (np.exp(other) + y).T
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("run", "why"),
    [(by_its_number, "looks at the numbers"), (by_a_mask, "looks at the numbers"), (with_a_large_table, "constants")],
)
def test_what_no_tape_says(run: Callable, why: str) -> None:
    x = np.arange(1, 7).reshape(2, 3)
    made, tape = _noted(run, x, x)
    assert tape.played(made) is None
    assert why in tape.broken


def test_what_holds_no_longer_is_not_played() -> None:
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    made, tape = _noted(by_its_sign, x, y)
    assert _played(tape, made, torch.full((2, 3), 5.0), torch.from_numpy(y))[1, 2] == 5
    played = tape.played(made)
    assert played is not None
    assert played(torch.full((2, 3), -5.0), torch.from_numpy(y)) is None


def test_constants_are_kept_and_told_apart() -> None:
    x = np.ones((2, 3), np.float32)
    made, tape = _noted(with_a_table, x, x)
    again, same = _noted(with_a_table, x, x)
    found = _played(tape, made, torch.zeros(2, 3), None)
    assert same.played(again) is not None
    assert tape.says[1] == same.says[1]  # type: ignore[index]
    np.testing.assert_array_equal(found, np.arange(6).reshape(2, 3))


def test_tapes_say_numbers_and_no_ids_of_them() -> None:
    """A number that is gone leaves its id to another: stretches that differ in one would be taken for each other."""
    said = []
    for number in ("0.25", "0.75", "0.25"):
        x = torch.ones(2)
        tape, made = Tape([x], torch.is_tensor), x * float(number)
        tape.note(torch.mul, (x, float(number)), {}, made)
        assert tape.played([made]) is not None
        said.append(tape.says)
    assert said[0] == said[2] != said[1]


def test_a_tensor_from_nowhere() -> None:
    x = torch.ones(2)
    tape = Tape([x], torch.is_tensor)
    tape.note(torch.add, (x, torch.ones(2)), {}, x + 1)
    assert tape.broken == "a tensor comes from nowhere"


def test_numbers_that_are_equal_are_told_apart() -> None:
    values = (0, False, 0.0, -0.0, 0j, (0,), [0])
    assert len({told_apart(one) for one in values}) == len(values)
    assert told_apart(float("nan")) == told_apart(float("nan"))


def test_other_attributes_shapes_and_types_have_tapes_of_their_own() -> None:
    kernels = kernels_of("torch")
    random = np.random.default_rng(1)
    op = lookup("MatMul")
    for _ in range(3):
        for turned in (False, True):
            for rows, kind in ((4, np.float32), (3, np.float32), (4, np.float64)):
                x, w = (random.normal(size=(rows, rows)).astype(kind) for _ in range(2))
                (found,) = _ran(kernels, op, [x, w], {"transpose_a": False, "transpose_b": turned})
                np.testing.assert_allclose(found, x @ (w.T if turned else w), rtol=1e-5, atol=1e-5)


def test_one_tensor_given_twice_says_nothing_of_two() -> None:
    """A counter compared with itself had left a tape by which any number was compared with itself."""
    kernels, op = kernels_of("torch"), lookup("Less")
    kinds = [type_of(np.zeros((), bool)).dtype]
    one, other = torch.tensor([3], dtype=torch.int16), torch.tensor([5], dtype=torch.int16)
    for _ in range(3):
        assert not bool(kernels.run(op, [one, one], {}, kinds)[0])
    for _ in range(3):
        assert bool(kernels.run(op, [one, other], {}, kinds)[0])


def test_a_compiled_stretch_of_one_tensor_given_twice_says_nothing_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = CompiledKernels(0, kernels_of("torch"))
    one, other = torch.full((2, 3), 2.0), torch.full((2, 3), 7.0)

    def plays(tape: Tape, made: tuple, _: Any) -> Callable:
        return lambda run, *operands: (torch.from_numpy(_played(tape, made, *operands)),)

    monkeypatch.setattr(kernels, "_made", plays)  # what is compiled, without the compiler

    def stretch(x, y):
        return (kernels.Sub(x, y, of="f32"),)

    for x, y in ((one, one), (one, one), (one, other), (one, other)):
        (found,) = kernels.stretch("s", stretch, x, y)
        assert torch.equal(found, x - y)


def test_an_operator_goes_another_way_when_its_numbers_say_so() -> None:
    @operator("TestTapeSign", rule="n -> n")
    def by_sign(x):
        """x, or its square where the first is negative."""
        return x if bool(x[0] >= 0) else x * x

    remove("TestTapeSign")
    kernels = kernels_of("torch")
    for x in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [-1.0, 2.0], [-3.0, 2.0]):
        one = np.array(x, np.float32)
        np.testing.assert_array_equal(_ran(kernels, by_sign, [one], {})[0], one if x[0] >= 0 else one * one)


def test_constants_that_are_made_while_torch_traces_are_not_kept() -> None:
    @operator("TestTapeConstant", rule=lambda: ("-> n", {"n": 3}))
    def constant():
        """Three numbers."""
        return np.arange(3.0, dtype=np.float32)

    remove("TestTapeConstant")
    kernels, kinds = kernels_of("torch"), [type_of(np.float32(0)).dtype]
    with torch._subclasses.FakeTensorMode():
        for _ in range(4):
            (traced,) = kernels.run(constant, [], {}, kinds)
            assert type(traced) is not torch.Tensor
    for _ in range(4):
        np.testing.assert_array_equal(_ran(kernels, constant, [], {})[0], [0, 1, 2])
