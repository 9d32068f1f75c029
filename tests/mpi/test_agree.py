"""Programs that differ between ranks are found before they run: every rank tells the same first difference.

For any number of ranks: `mpiexec -n N python -m pytest tests/mpi`. The last rank is the odd one out.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import autoshard as ash
from autoshard import ops
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Program
from autoshard.runtime.agree import check_alike, describe, label
from autoshard.runtime.comm import show_ranks
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import MpiComm
from autoshard.util.errors import RuntimeSetupError

COMM = MpiComm()
WORLD, ODD = COMM.world, COMM.rank == COMM.world - 1
differing = pytest.mark.skipif(WORLD == 1, reason="one rank agrees with itself")


def program(function: Callable, shape=(24, 6), dtype="float32", parts: int = WORLD) -> Program:
    """A program over all ranks, its only operator split by rows in `parts`."""
    operator = ops.ReLU().shard(((parts, 1),))
    return ash.plan(lambda x: function(operator(x)), (np.ones(shape, dtype),), devices=WORLD).program


def scaled(by: float) -> Callable:
    return lambda y: ops.mul(y, by)


def told(mine: Program) -> str:
    """What this rank says of the ranks' programs, which differ; all ranks say the same."""
    with pytest.raises(RuntimeSetupError) as caught:
        check_alike(mine, COMM)
    text = np.zeros(4000, np.uint8)
    said = str(caught.value).encode()
    text[: len(said)] = np.frombuffer(said, np.uint8)
    (everywhere,) = COMM.all_gather([text[None]], Mesh.flat(WORLD).groups(Mesh.flat(WORLD).all_axes), 0)
    assert (everywhere == everywhere[0]).all()
    return str(caught.value)


def versions(text: str) -> list[str]:
    """Both versions of the first difference, that of the other ranks and that of the odd one."""
    first, *lines, last = text.splitlines()
    assert re.fullmatch(r"the ranks have different programs of '\w+'; the first difference is in line \d+:", first)
    assert last.startswith("every rank has to build the same model")
    others, odd = lines
    assert others.startswith(f"  {show_ranks(range(WORLD - 1))}: ") and odd.startswith(f"  rank {WORLD - 1}: ")
    return [line.partition(": ")[2] for line in lines]


def test_equal_programs_pass() -> None:
    check_alike(program(ops.exp), COMM)
    check_alike(program(scaled(3.0)), COMM)


def test_names_of_values_may_differ() -> None:
    """Automatic names depend on what a rank has made before; what is computed does not."""
    plan = lambda x_or_rows: ash.plan(x_or_rows, (np.ones((24, 6), np.float32),), devices=WORLD)  # noqa: E731
    mine = plan(lambda rows: ops.exp(rows)) if ODD else plan(lambda x: ops.exp(x))
    check_alike(mine.program, COMM)


@differing
def test_another_operator() -> None:
    others, odd = versions(told(program(ops.tanh if ODD else ops.exp)))
    assert " = Exp " in others and " = Tanh " in odd
    assert "test_agree.py:" in others and "test_agree.py:" in odd


@differing
def test_another_number_in_an_operator() -> None:
    others, odd = versions(told(program(scaled(2.5 if ODD else 3.5))))
    assert others != odd


@differing
@pytest.mark.parametrize(
    "changed, here, there", [({"shape": (48, 6)}, "24, 6", "48, 6"), ({"dtype": "float64"}, "f32", "f64")]
)
def test_other_inputs(changed: dict, here: str, there: str) -> None:
    others, odd = versions(told(program(ops.exp, **(changed if ODD else {}))))
    assert here in others and there in odd


@differing
def test_another_split() -> None:
    others, odd = versions(told(program(ops.exp, parts=1 if ODD else WORLD)))
    assert others != odd


@differing
def test_a_step_more() -> None:
    others, odd = versions(told(program((lambda y: ops.tanh(ops.exp(y))) if ODD else ops.exp)))
    assert "Tanh" not in others and " = Tanh " in odd


def test_ranks_of_one_process_share_their_program() -> None:
    check_alike(program(ops.exp), LocalComm(WORLD))


def test_lines_hold_no_addresses_and_operators_have_labels() -> None:
    """Objects' addresses differ between processes that mean the same."""
    made = program(lambda y: ops.reduce_sum(ops.softmax(scaled(2.0)(y)), axis=0))
    lines = describe(made)
    assert len(lines) == 1 + len(made.inputs) + len(made.instructions) + len(made.outputs)
    assert not any(re.search(r" at 0x|object", line.compared) for line in lines)
    labels = [label(one) for one in made.instructions]
    assert all(re.search(r"\(\w+\) at \S*test_agree\.py:\d+$|^the output ", text) for text in labels), labels
