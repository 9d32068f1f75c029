"""The dumps of all ranks tell a whole exchange: who sends which piece of its block to whom, and where that goes.

Blocks are moved here by what the texts say alone, and must come out as the ranks make them that run the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from autoshard.core.tensortype import TensorType
from autoshard.exporters.ir_dump import dump_program
from autoshard.exporters.ir_parse import DumpNode, parse_dump, show_dump
from autoshard.layout import Layout, Mesh
from autoshard.partition.program import Collective, Program, Register
from autoshard.partition.verify import verify_program
from autoshard.redistribute.planner import evened, plan_steps
from autoshard.redistribute.step import Step
from autoshard.runtime.local import LocalComm
from autoshard.runtime.steps import run_step

Places = tuple[int, ...]

# Mesh, before, after and shape of redistributions that are one permute: of blocks, of a piece of each block, in rounds
# with pieces of one and of two dims, of terms, and of boxes: even and padded ones, terms that end and terms that begin.
PERMUTES = [
    ("a=2 b=2 c=2", "a, b, -", "b, a, -", (4, 6, 5)),
    ("a=2 b=2 c=2", "a, -, b", "c, b, a", (6, 8, 10)),
    ("a=4 b=3", "-, b.a", "b, a", (15, 60)),
    ("a=2 b=2 c=2", "-, c, b", "b, a.c, -", (4, 8, 6)),
    ("d=8", "d, -, -", "-, d:(1)4, d:(4)2", (16, 8, 6)),
    ("a=2 b=2 c=2", "c.b +a", "b +a", (12,)),
    ("a=4 b=3", "a, -", "b, -", (12, 5)),
    ("a=3 b=2", "b, -", "a, -", (7, 10)),
    ("a=2 b=2 c=2", "a +b", "b.a.c", (9,)),
    ("a=4 b=3", "-, b.a:(2)2", "b, - +a", (2, 5)),
]


@pytest.mark.parametrize(("mesh", "before", "after", "shape"), PERMUTES)
def test_blocks_moved_by_the_text_are_those_that_ranks_make(mesh: str, before: str, after: str, shape: Places) -> None:
    old, new = (Layout.parse(text, Mesh.parse(mesh)) for text in (before, after))
    even = evened(old, new, shape)
    (step,) = [step for step in plan_steps(old, new, even, size=shape) if step.communicates]
    assert step.kind == "permute"
    lines = dumped(step, even)
    array = np.arange(np.prod(even)).reshape(even)
    held = [(rank + 1) * array[step.before.block(rank, even)] for rank in range(len(lines))]
    wanted = run_step(step, held, LocalComm(len(lines)))
    for rank, line in enumerate(lines):
        np.testing.assert_array_equal(moved(lines, held, rank, step.after.local_shape(even)), wanted[rank])
        for target in ranks(line, "dest_rank", "send_rank_ids"):
            sent = ranks(line, "dest_rank", "send_rank_ids").count(target)
            assert ranks(lines[target], "src_rank", "recv_rank_ids").count(rank) == sent


def dumped(step: Step, shape: Places) -> list[DumpNode]:
    """The step's line in the dump of each rank, read back."""
    of = TensorType.of(shape)
    first, last = Register("x", of, step.before), Register("y", of, step.after)
    program = Program("one", step.before.mesh, (first,), (Collective(step, first, last, None),), (last,))
    verify_program(program)
    lines = []
    for rank in range(program.mesh.devices):
        text = dump_program(program, rank)
        dump = parse_dump(text)
        assert show_dump(dump) == text
        lines += dump.nodes
    assert len(lines) == program.mesh.devices
    return lines


def moved(lines: list[DumpNode], held: list[np.ndarray], rank: int, local: Places) -> np.ndarray:
    """The new block of a rank, by the lines."""
    attrs = told(lines[rank])
    made = np.zeros(local, held[0].dtype)
    if lines[rank].op == "NeighborExchange":
        for source, start, stop, begin, end, adds in attrs["recv_boxes"]:
            box, place = held[source][spans(start, stop)], spans(begin, end)
            made[place] = box + made[place] if adds else box
    elif "piece" not in attrs:
        made[...] = held[attrs["src_rank"]]
    else:
        for number, (source, begin) in enumerate(zip(attrs["src_rank"], attrs["recv_begin"], strict=True)):
            start, size = told(lines[source])["send_begin"][number], attrs["piece"]
            made[spans(begin, np.add(begin, size))] = held[source][spans(start, np.add(start, size))]
    return made


def spans(begin: Sequence[int], end: Sequence[int]) -> tuple[slice, ...]:
    """The box between two corners."""
    return tuple(map(slice, begin, end))


def told(line: DumpNode) -> dict[str, Any]:
    """What a line says, by name."""
    return dict(line.attrs or ())


def ranks(line: DumpNode, *names: str) -> list[int]:
    """The ranks that a line has under the one of the names that it has."""
    (found,) = (value for name, value in told(line).items() if name in names)
    return [found] if isinstance(found, int) else list(found)
