"""The engine numpy writes what it has run: bit for bit what the interpreter gives, and in no more memory."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import autoshard as ash
from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.engines import numpy_engine
from autoshard.engines.numpy_engine import NumpyRun
from autoshard.engines.numpy_script import Script, Scripts, scripts
from autoshard.partition.program import Program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from benchmarks.engine_programs import prepared
from tests.engines.programs import forward, small_step, step

RUNS = 4
"""One is the interpreter's, one is noted, the others are written."""


def copied(blocks: list) -> list:
    return [[np.array(part) for part in parts] for parts in blocks]


def bits(parts: list) -> list:
    return [(one.dtype, one.shape, np.ascontiguousarray(one).tobytes()) for one in parts]


def check(program: Program, feeds: list, least: int = 0) -> NumpyRun:
    """Several runs: each gives the interpreter's bits, and changes no input that the caller holds."""
    comm = LocalComm(program.mesh.devices)
    executor, run = Executor(program, comm), NumpyRun(program, comm, noted=2)
    blocks = executor.scatter(feeds)
    wanted = [bits(parts) for parts in executor.run(copied(blocks))]
    for _ in range(RUNS):
        given = copied(blocks)
        held = [part for parts in given for part in parts]
        assert [bits(parts) for parts in run.consume(given)] == wanted
        assert bits(held) == bits([part for parts in blocks for part in parts])
        assert [bits(parts) for parts in run.consume(copied(blocks))] == wanted
    inside = len(program.instructions) - sum(action in run._actions for action in run._written or ())
    assert inside >= least
    return run


@pytest.mark.parametrize("seed", (*range(24), 107))  # 107 adds up rows that lie backwards
def test_random_programs(seed: int) -> None:
    one = prepared(seed)
    with np.errstate(all="ignore"):
        check(one.program, one.feeds)


MODELS = [
    (made, *how)
    for made in (forward, step, small_step)
    for how in (("tp=2", "megatron"), ("d=2 t=2", "sharding_propagation"))
]


@pytest.mark.parametrize(("made", "mesh", "search"), MODELS)
def test_models(made, mesh: str, search: str) -> None:
    planned, feeds = made(mesh, search)
    check(planned.program, planned.traced.inputs(*feeds), len(planned.program.instructions) // 2)


def peak(run: Executor, blocks: list) -> int:
    """Bytes that a run takes at once beside its inputs, which it may use up."""
    given = copied(blocks)
    gc.collect()
    tracemalloc.start()
    run.consume(given)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


@pytest.mark.parametrize("made", (step, small_step))
def test_a_written_program_takes_no_more_memory(made) -> None:
    planned, feeds = made("tp=2", "megatron")
    program, comm = planned.program, LocalComm(2)
    executor, run = Executor(program, comm), NumpyRun(program, comm, noted=2)
    blocks = executor.scatter(planned.traced.inputs(*feeds))
    for _ in range(RUNS):
        run.consume(copied(blocks))
        executor.consume(copied(blocks))
    assert peak(run, blocks) <= 1.02 * peak(executor, blocks) + (1 << 14)  # lists and names of Python's beside arrays


# -- operators of few inputs, on two ranks


def program_of(function, *arrays: np.ndarray) -> Program:
    traced = ash.trace(function, *arrays)
    return ash.plan(traced, mesh="d=2", search="batch").program


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def written(function, *arrays: np.ndarray) -> str:
    return check(program_of(function, *arrays), list(arrays)).text


def test_elementwise_results_lie_in_the_memory_of_what_has_ended() -> None:
    text = written(lambda x, y: ops.relu(ops.exp(x * y)) - y, random(8, 6), random(8, 6))
    assert text.count("out=v") == 3
    assert "out=x" not in text and "free(" not in text, "inputs are the caller's"


def test_what_another_still_reads_is_not_written_over() -> None:
    def function(x):
        y = ops.exp(x)
        rows = ops.reshape(y, (48,))
        return ops.relu(y), rows

    assert "out=" not in written(function, random(8, 6))


def test_an_output_that_is_constant_is_the_callers_own() -> None:
    run = check(
        program_of(lambda x: (x + 1, ops.fill(shape=(4,), value=2.0, dtype="f32")), random(8, 6)), [random(8, 6)]
    )
    blocks = run.scatter([random(8, 6)])
    run.run(blocks)[1][0][...] = 7
    assert np.all(run.run(blocks)[1][0] == 2)


def test_an_output_that_is_a_part_of_an_input_is_the_callers_own() -> None:
    x = random(8, 6)
    run = check(program_of(lambda x: (ops.reshape(x[:4], (24,)), ops.exp(x)), x), [x])
    blocks = run.scatter([x])
    for _ in range(2):
        made = run.run(blocks)
        for part in made[0]:
            assert not any(np.may_share_memory(part, block) for block in blocks[0]) or part.flags.owndata is False


def test_heads_become_tokens_without_a_copy() -> None:
    def function(x, y):
        return ops.reshape(ops.transpose(ops.batch_matmul(x, y), (0, 2, 1, 3)), (2, 3, 20)) + 1

    text = written(function, random(2, 4, 3, 6), random(2, 4, 6, 5))
    assert ".transpose" in text and "out=v" in text and "empty(" in text


def test_floating_point_errors_are_told_as_the_operator_does() -> None:
    x = np.full((8, 6), -200, np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert "with errstate(" in written(ops.silu, x)
        with pytest.raises(FloatingPointError):
            written(lambda x: ops.exp(-x), x)


def test_what_looks_at_numbers_has_no_script() -> None:
    indices = np.array([3, 1, 7])
    found, _ = scripts().of(ops.lookup("Gather"), [random(8, 6), indices], {"axis": 0}, [dtype("f32")], [False, False])
    assert not isinstance(found, Script) and "look" in found
    check(program_of(lambda x, i: ops.exp(ops.gather(x, i, axis=0)), random(8, 6), indices), [random(8, 6), indices])


def test_a_script_that_does_not_agree_is_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Scripts()
    monkeypatch.setattr(numpy_engine, "scripts", lambda: known)
    monkeypatch.setattr(numpy_engine, "_same_bits", lambda one, other: False)
    x = random(8, 6)
    run = check(program_of(lambda x: ops.exp(ops.exp(x)), x), [x])
    assert run._written is not None
    assert [action for _, action in run._written] == [action for _, action in run._actions]


def test_large_operators_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_engine, "LARGEST", 0)
    x = random(8, 6)
    run = check(program_of(lambda x: ops.exp(x) + 1, x), [x])
    assert [action for _, action in run._written or ()] == [action for _, action in run._actions]


def test_inputs_of_another_type_are_the_interpreters() -> None:
    x = random(8, 6)
    run = check(program_of(lambda x: ops.exp(x) + 1, x), [x])
    wide = [[part.astype(np.float64) for part in parts] for parts in run.scatter([x])]
    wanted = Executor(run.program, run.comm).run(copied(wide))
    assert [bits(parts) for parts in run.run(wide)] == [bits(parts) for parts in wanted]


def test_a_run_that_is_timed_is_the_interpreters() -> None:
    x = random(8, 6)
    run = check(program_of(lambda x: ops.exp(x) + 1, x), [x])
    run.times = memoryview(bytearray(16 * len(run.program.instructions))).cast("q")
    run.consume(run.scatter([x]))
    assert all(run.times)
