"""Golden files of the seed documents' worked examples, in sections, and tables and graphs as they are printed in them.

A file is a comment that says what it shows, and sections that start with `// == TITLE`. Some hold what goes in, the
others what has to come out; AUTOSHARD_REWRITE_GOLDEN=1 writes the latter anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autoshard.core.rule import Rule
from autoshard.layout.mesh import Mesh
from autoshard.layout.sdy_text import parse_sharding, show_sharding
from autoshard.layout.sharding import Sharding
from autoshard.propagate.basic import compatible_major_axes
from autoshard.propagate.mutable_ir import Block, MutableModule, MutableValue
from autoshard.propagate.projection import TensorFactorShardings, factor_map, to_factors
from autoshard.propagate.step import step
from autoshard.propagate.values import get_sharding

FOLDER = Path(__file__).parent.parent / "golden" / "seeds"
REWRITE = os.environ.get("AUTOSHARD_REWRITE_GOLDEN") == "1"
_HEAD = "// == "


def sections(file: str) -> dict[str, str]:
    """Title -> text; the comment at the top has the title ''."""
    found, title = {"": ""}, ""
    for line in (FOLDER / file).read_text(encoding="utf-8").splitlines(keepends=True):
        if line.startswith(_HEAD):
            title = line.removeprefix(_HEAD).strip()
            found[title] = ""
        else:
            found[title] += line
    return found


def golden(file: str, title: str, made: str) -> str:
    """What the file has under that title; if it is to be written anew, what we made."""
    parts = sections(file)
    if REWRITE:
        parts[title] = made
        text = "".join((f"{_HEAD}{part}\n" if part else "") + body for part, body in parts.items())
        (FOLDER / file).write_text(text, encoding="utf-8")
    return parts[title]


def check(file: str, title: str, made: str) -> None:
    """What we made must be what the file has under that title."""
    assert made == golden(file, title, made), f"{file}, {title!r} differs; AUTOSHARD_REWRITE_GOLDEN=1 rewrites it"


# -- a table of factors, as in Shardy's propagation document


def table(rule: Rule, mesh: Mesh, asked: Sequence[Sharding | None]) -> str:
    """The table of an operator's tensors, the axes its factors agree on, and the table after each kind of step."""
    of_rule = factor_map(rule)
    names = [factor.name for factor in rule.factors]
    rows = [["", *(f"{name}={size}" for name, size in zip(names, of_rule.sizes, strict=True)), "replicated"]]
    projected = [to_factors(tensor, sharding) for tensor, sharding in zip(of_rule.tensors, asked, strict=True)]
    rows += _rows(mesh, projected)
    rows.append(["agreed", *(mesh_text(mesh, axes) for axes in _agreed(of_rule.columns, projected)), ""])
    for title, aggressive in (("basic", False), ("aggressive", True)):
        after = list(asked)
        for tensor, sharding in step(rule, tuple(asked), aggressive=aggressive).changes:
            after[tensor] = sharding
        rows.append([title, *[""] * (len(names) + 1)])
        rows += _rows(mesh, [to_factors(of, one) for of, one in zip(of_rule.tensors, after, strict=True)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def _agreed(columns: Sequence, rows: Sequence[TensorFactorShardings]) -> Iterator[tuple]:
    for factor, (operands, results) in enumerate(columns):
        yield compatible_major_axes(
            [rows[i].axes[factor] for i in operands], [rows[i].axes[factor] for i in results], True
        )


def _rows(mesh: Mesh, rows: Sequence[TensorFactorShardings]) -> list[list[str]]:
    """`X` where the tensor does not have the factor, `.` for no axes, `!` behind what is closed."""

    def cell(row: TensorFactorShardings, factor: int) -> str:
        axes = row.axes[factor]
        return "X" if axes is None else mesh_text(mesh, axes) + "!" * row.closed[factor]

    return [
        [f"T{i}", *(cell(row, factor) for factor in range(len(row.axes))), mesh_text(mesh, row.reserved)]
        for i, row in enumerate(rows)
    ]


def mesh_text(mesh: Mesh, axes: Sequence) -> str:
    return " ".join(map(mesh.show_ref, axes)) or "."


# -- graphs with shardings


def read_asked(text: str) -> tuple[Mesh, dict[str, Sharding]]:
    """A line `mesh x=2 y=3`, and lines `name [{"x", ?}, {}]`."""
    first, *lines = text.splitlines()
    mesh = Mesh.parse(first.removeprefix("mesh "))
    pairs = (line.split(" ", 1) for line in lines)
    return mesh, {name: parse_sharding(f"<@mesh, {of}>", {"mesh": mesh}) for name, of in pairs}


def show_work(module: MutableModule) -> str:
    """A line for each argument and operation, with shardings; regions further in."""
    return "".join(f"{line}\n" for op in module.functions for line in _block(op.blocks[0], {}, ""))


def _block(block: Block, names: dict[MutableValue, str], indent: str) -> Iterator[str]:
    for value in block.args:
        names[value] = f"%{len(names)}"
        yield f"{indent}{names[value]}: {_typed(value)}"
    for op in block:
        call = f"{op.name}({', '.join(names[value] for value in op.operands)})"
        for value in op.results:
            names[value] = f"%{len(names)}"
        made = ", ".join(f"{names[value]}: {_typed(value)}" for value in op.results)
        yield f"{indent}{made} = {call}" if made else f"{indent}{call}"
        for inner in op.blocks:
            yield f"{indent}  region"
            yield from _block(inner, names, f"{indent}    ")


def _typed(value: MutableValue) -> str:
    sharding = get_sharding(value)
    if sharding is None:
        return str(value.type)
    return f"{value.type} {show_sharding(sharding).removeprefix('<@mesh, ').removesuffix('>')}"


def by_name(module: MutableModule) -> Mapping[str, Sharding | None]:
    """The sharding of each value that came from a graph, by its name there."""
    ops = list(module.op.walk())
    vals = [val for op in ops for val in (*op.results, *(arg for block in op.blocks for arg in block.args))]
    return {val.origin.name: val.sharding for val in vals if val.origin is not None}
