"""Agreement: before ranks run a program, each makes sure that the others were given the same one.

Ranks that differ (in a setting, a seed, a version, a file) would exchange arrays that do not belong together, or wait
for ever. Compared are digests, one collective of 16 bytes; only where these differ do ranks exchange what they have,
and every rank tells the first difference in the same words.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.ir.graph import Node, walk
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import (
    Bundle,
    Collective,
    Instruction,
    ManualCollective,
    Nest,
    NestBody,
    Program,
    Register,
    Start,
    Wait,
)
from autoshard.runtime.comm import Comm, show_ranks
from autoshard.util.errors import RuntimeSetupError

_DIGEST = 16


def check_alike(program: Program, comm: Comm) -> None:
    """Compare the ranks' programs: their steps, shapes, dtypes, layouts and attributes, not the names in them.

    Every rank has to call it; where all ranks are in this process there is nothing to compare.

    Raises:
        RuntimeSetupError: the programs differ; on every rank, with the first step that differs in all its versions.
    """
    if len(comm.ranks) == comm.world:
        return
    steps = describe(program)
    compared = json.dumps([step.compared for step in steps])
    digest = hashlib.blake2b(compared.encode(), digest_size=_DIGEST).digest()
    digests = _rows(comm, np.frombuffer(digest, np.uint8))
    if (digests == digests[0]).all():
        return
    raise RuntimeSetupError(_first_difference(program.name, _texts(comm, steps)))


@dataclasses.dataclass(frozen=True)
class Line:
    """One step of a program: what has to be alike on all ranks, and how people read it."""

    compared: str
    shown: str


def describe(program: Program) -> list[Line]:
    """The program line by line: its mesh, its inputs, its instructions, its outputs. Registers go by their order."""
    numbers: dict[Register, int] = {}
    lines = [Line(f"mesh {program.mesh} {program.mesh.order}", f"mesh {program.mesh}")]
    for register in program.inputs:
        numbers[register] = len(numbers)
        lines.append(Line(f"input {_typed(register)}", f"input {register.name}: {_typed(register)}"))
    lines += _block(program.instructions, numbers)
    for i, register in enumerate(program.outputs):
        into = program.updates.get(i, "")
        lines.append(Line(f"output %{numbers[register]} {into}", f"output {register.name}: {_typed(register)}"))
    return lines


def _block(instructions: Sequence[Instruction], numbers: dict[Register, int]) -> Iterator[Line]:
    """The lines of instructions, each followed by those of its bodies."""
    for instruction in instructions:
        operands = " ".join(f"%{numbers[one]}" for one in _read(instruction))
        bodies = [line for body in _bodies(instruction) for line in _body(body, numbers)]
        for register in instruction.results:
            numbers[register] = len(numbers)
        what, attrs, node = _what(instruction)
        types = ", ".join(map(_typed, instruction.results))
        named = ", ".join(f"{one.name}: {_typed(one)}" for one in instruction.results)
        inputs = " ".join(one.name for one in _read(instruction))
        source = f" (at {node.source})" if node is not None and node.source is not None else ""
        shown = f"{named} = {what} {inputs}{f' {_short(attrs)}' if attrs else ''}{source}"
        yield Line(f"{types} = {what} {operands} {attrs}", shown)
        yield from bodies


def _body(body: NestBody, numbers: dict[Register, int]) -> Iterator[Line]:
    for register in body.args:
        numbers[register] = len(numbers)
        yield Line(f"argument {_typed(register)}", f"argument {register.name}: {_typed(register)}")
    yield from _block(body.instructions, numbers)
    ends = [numbers[one] for one in body.outputs]
    yield Line(f"yield {ends}", f"yield {', '.join(one.name for one in body.outputs)}")


def _bodies(instruction: Instruction) -> tuple[NestBody, ...]:
    return instruction.bodies if isinstance(instruction, Nest) else ()


def _read(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that an instruction itself reads."""
    return instruction.entering if isinstance(instruction, Nest) else instruction.operands


def _what(instruction: Instruction) -> tuple[str, str, Node | None]:
    """What an instruction does, its attributes as text, and the node that it is for."""
    if isinstance(instruction, Collective):
        return str(instruction.step), "", instruction.serves
    if isinstance(instruction, Bundle):
        return f"bundle of {'; '.join(str(one.step) for one in instruction.parts)}", "", instruction.serves
    if isinstance(instruction, Start | Wait):
        begun = instruction.of if isinstance(instruction, Start) else instruction.start.of
        return f"{type(instruction).__name__.lower()} {_what(begun)[0]}", "", instruction.serves
    node = instruction.node
    if isinstance(instruction, Nest):
        return node.op.name, _text(node.attrs), node
    if isinstance(instruction, ManualCollective):
        return node.op.name, f"{_text(node.attrs)} over {instruction.groups}", node
    return instruction.op.name, _text(instruction.attrs) + _inside(node), node


def label(instruction: Instruction) -> str:
    """How the operator that an instruction is of is told to people: `h (MatMul) at train.py:12`."""
    node = instruction.serves if isinstance(instruction, Collective | Bundle | Start | Wait) else instruction.node
    if node is None:
        return f"the output {instruction.operands[0].name}"
    return f"{node.label} ({node.op.name})" + (f" at {node.source}" if node.source is not None else "")


def _inside(node: Node) -> str:
    """The operators in the regions of a node."""
    inner = (one for region in node.regions for one in walk(region.nodes))
    return "".join(f"[{one.op.name} {', '.join(map(str, one.result_types))} {_text(one.attrs)}]" for one in inner)


def _typed(register: Register) -> str:
    held = "" if register.size is None else f" in {register.whole.shape}"
    return f"{register.true}{held}[{register.layout}]"


# -- attributes as text that is the same in every process ----------------------------------------------------


def _text(value: Any, seen: dict[int, int] | None = None) -> str:
    """The value without addresses or anything else that differs between processes that mean the same."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.dtype | DType):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        content = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=8).hexdigest()
        return f"{value.dtype}{list(value.shape)}#{content}"
    if isinstance(value, Mesh):
        return f"{value} {value.order}"
    if id(value) in seen:
        return f"@{seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, Mapping):
        return "".join(f"{{{key}={_text(item, seen)}}}" for key, item in value.items())
    if isinstance(value, tuple | list):
        return f"({', '.join(_text(item, seen) for item in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_text(item, seen) for item in value))}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (_text(getattr(value, one.name), seen) for one in dataclasses.fields(value) if one.compare)
        return f"{type(value).__name__}({', '.join(fields)})"
    return getattr(value, "__qualname__", None) or str(getattr(value, "name", type(value).__qualname__))


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


# -- exchange ------------------------------------------------------------------------------------------------


def _rows(comm: Comm, mine: np.ndarray) -> np.ndarray:
    """The arrays (of one dim and equal size) of all ranks, a row for each."""
    mesh = Mesh.flat(comm.world)
    return comm.all_gather([mine[None]], mesh.groups(mesh.all_axes), 0)[0]


def from_all(comm: Comm, text: str) -> list[str]:
    """The texts of all processes: of all ranks in order, or the one of the process that hosts all ranks."""
    if len(comm.ranks) == comm.world:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = _rows(comm, np.array([data.size], np.int64))[:, 0]
    if not sizes.any():
        return [""] * comm.world
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: data.size] = data
    return [row[:size].tobytes().decode() for row, size in zip(_rows(comm, padded), sizes, strict=True)]


def _texts(comm: Comm, steps: Sequence[Line]) -> list[list[Line]]:
    """The steps of all ranks."""
    texts = from_all(comm, json.dumps([(step.compared, step.shown) for step in steps]))
    return [[Line(*pair) for pair in json.loads(text)] for text in texts]


def _first_difference(name: str, texts: Sequence[Sequence[Line]]) -> str:
    """The message: which step is the first that not all ranks have, and what each has there."""
    most = max(map(len, texts))
    padded = [[*steps, *[_NOTHING] * (most - len(steps))] for steps in texts]
    number, versions = next(
        (i, step) for i, step in enumerate(zip(*padded, strict=True)) if len({one.compared for one in step}) > 1
    )
    ranks: dict[str, list[int]] = {}
    for rank, version in enumerate(versions):
        ranks.setdefault(version.compared, []).append(rank)
    shown = {version.compared: version.shown for version in versions}
    alike = len(set(shown.values())) < len(shown)
    told = "".join(f"\n  {show_ranks(those)}: {text if alike else shown[text]}" for text, those in ranks.items())
    return (
        f"the ranks have different programs of {name!r}; the first difference is in line {number + 1}:{told}\n"
        "every rank has to build the same model with the same settings, shapes and versions of packages"
    )


_NOTHING = Line("", "nothing, the program has ended")
