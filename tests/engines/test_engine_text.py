"""The text of a program is a second reading of it: with numpy, bit for bit what the interpreter gives."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import Parameter, nn, ops, plan
from autoshard.engines.grid import Grid
from autoshard.engines.groups import AxisPieces
from autoshard.engines.kernels import kernels_of
from autoshard.engines.local_run import LocalRun
from autoshard.engines.pausing import PausingStretched
from autoshard.engines.rounds import rounds_of
from autoshard.engines.stretches import Stretched
from autoshard.engines.text import write
from autoshard.layout.mesh import Mesh
from autoshard.ops.registry import operator
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.transform.train import train_step
from autoshard.util.errors import UnknownNameError
from tests.engines.programs import program_of
from tests.oracle.many import case

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_text_equals_interpreter_bit_for_bit(seed: int) -> None:
    one = case(seed)
    program = program_of(one)
    executor = Executor(program, LocalComm(program.mesh.devices))
    blocks = executor.scatter(one.made.feeds)
    found = executor.gather(LocalRun(program).consume([[np.array(part) for part in parts] for parts in blocks]))
    for got, want in zip(found, executor.gather(executor.run(blocks)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", SEEDS)
def test_stretches_change_nothing(seed: int) -> None:
    one = case(seed)
    program = program_of(one)
    comm = LocalComm(program.mesh.devices)
    run = LocalRun(program)
    blocks = Executor(program, comm).scatter(one.made.feeds)
    wanted = run.consume([list(parts) for parts in blocks])
    run.text = Stretched(program).text()
    found = run.consume([list(parts) for parts in blocks])
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    inside = run.text.source.count("\n    def stretch")
    assert inside == run.text.source.count("k.stretch(") > 0


@pytest.mark.parametrize("at", (0, 1, 3, 7))
def test_stretches_end_where_a_text_pauses(at: int) -> None:
    one = case(5)
    program = program_of(one)
    run = LocalRun(program)
    blocks = Executor(program, LocalComm(program.mesh.devices)).scatter(one.made.feeds)
    wanted = run.consume([list(parts) for parts in blocks])
    at = min(at, len(program.instructions))
    text = PausingStretched(program, [(at, ()), (at, ())]).text()
    step = text.step(run._kernels, run._collectives, text.constants, *blocks)
    assert [next(step), next(step)] == [(), ()]
    with pytest.raises(StopIteration) as end:
        next(step)
    for got, want in zip(end.value.value, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.torch
@pytest.mark.parametrize("seed", (2, 12))
def test_text_on_torchs_operators(seed: int) -> None:
    pytest.importorskip("torch")
    one = case(seed)
    program = program_of(one)
    executor = Executor(program, LocalComm(program.mesh.devices))
    blocks = executor.scatter(one.made.feeds)
    found = executor.gather(LocalRun(program, kernels_of("torch")).consume([list(parts) for parts in blocks]))
    for got, want in zip(found, executor.gather(executor.run(blocks)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_texts_are_equal_for_equal_programs() -> None:
    first, second = (write(program_of(case(3))).source for _ in range(2))
    assert first == second and first.count("def step(") == 1


def test_groups_by_names_and_by_rows() -> None:
    mesh = Mesh.parse("6")
    halves, thirds = mesh.ref("d:(1)2"), mesh.ref("d:(2)3")
    named = AxisPieces(mesh, [halves, thirds], listed=False)
    assert named.axes((halves,)) == ("d_0",)
    assert named.grid.rows(("d_0",)) == ((0, 3), (1, 4), (2, 5))
    clashing = AxisPieces(mesh, [halves, thirds, mesh.ref("d:(1)3")], listed=False)
    assert clashing.axes((halves,)) == ((0, 3), (1, 4), (2, 5))
    assert clashing.grid == Grid((("ranks", 6),), tuple(range(6)))


def test_groups_keep_the_order_of_axes_and_of_the_mesh() -> None:
    grid = Grid((("dp", 2), ("tp", 2)), (3, 1, 0, 2))
    assert grid.rows(("tp", "dp")) == ((3, 0, 1, 2),)
    assert grid.index(("dp", "tp")) == (2, 1, 3, 0)


def test_no_rank_sends_twice_in_a_round() -> None:
    box = ((0, 1, 1),)
    table = tuple(tuple((source, box, box, False) for source in range(4)) for _ in range(4))
    rounds = rounds_of(table)
    assert sum(map(len, rounds)) == 12
    for messages in rounds:
        sources, targets = [one[0] for one in messages], [one[1] for one in messages]
        assert len(set(sources)) == len(sources) and len(set(targets)) == len(targets)


def test_texts_tell_the_gradient_of_a_bias_of_attention() -> None:
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 2, 6, 4)).astype(np.float32)
    bias = Parameter(rng.normal(size=(1, 2, 6, 6)).astype(np.float32), name="bias")
    step = train_step(lambda q: ops.reduce_sum(ops.square(ops.attention(q, q, q, bias)[0])), nn.SGD([bias], 0.1), q)
    program = plan(step, devices=2).program
    assert "AttentionMaskGrad(" in write(program).source
    assert callable(write(program).step)


def test_an_attribute_called_as_texts_call_types_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="an attribute of operator 'Odd' cannot be called 'of'"):
        operator("Odd", rule="... -> ...")(lambda x, *, of=1: x)
