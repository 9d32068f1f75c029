"""The text of a module of Shardy's MPMD dialect: groups as meshes of a topology, fragments on them, transfers between.

    main = MpmdText("step", (grid, other))
    x = main.argument(0, "tensor<4x8xf32>", '[{"dp"}, {}]')
    (y,) = main.fragment(Fragment('"stage0"', 0), (x,), body, ('[{"dp"}, {}]',))
    main.module((main.sent(y, 1),))

A transfer leaves the sharding as it is: a body that reads a value in another one says so itself. Between meshes of
other axes values go whole, which a fragment makes of them before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autoshard.engines.grid import Grid
from autoshard.engines.standalone import BoundaryValue
from autoshard.pipeline.exports.mpmd_bodies import MpmdBody


class MeshTensor(NamedTuple):
    """A value in the text: its name, the group on which it lies, the type of it whole, its sharding there."""

    name: str
    group: int
    tensor: str
    sharding: str


class Fragment(NamedTuple):
    """What a fragment says of itself: its origin, group, stage, micro batch, and which half of a backward it is."""

    origin: str
    group: int
    stage: int | None = None
    micro: int | None = None
    half: str = ""


@dataclass
class MpmdText:
    """Writes the function of a module.

    Attributes:
        grids: the mesh of each group.
    """

    name: str
    grids: Sequence[Grid]
    lines: list[str] = field(default_factory=list)
    arguments: list[MeshTensor] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)
    """Arguments that a result replaces."""
    _sent: dict[tuple[MeshTensor, int], MeshTensor] = field(default_factory=dict)

    def symbol(self, group: int) -> str:
        """The symbol of a group's mesh: groups of equal meshes share it."""
        number = list(dict.fromkeys(self.grids)).index(self.grids[group])
        return f"mesh_{number}" if number else "mesh"

    def argument(self, group: int, tensor: str, sharding: str) -> MeshTensor:
        """One more argument of the function."""
        made = MeshTensor(f"%a{len(self.arguments)}", group, tensor, sharding)
        self.arguments.append(made)
        return made

    def fragment(
        self, of: Fragment, operands: Sequence[MeshTensor], body: MpmdBody, shardings: Sequence[str]
    ) -> list[MeshTensor]:
        """A fragment of that body; its results, which lie so."""
        group, name = of.group, f"%v{len(self.lines)}"
        count = len(shardings)
        names = [name] if count == 1 else [f"{name}#{i}" for i in range(count)]
        rows = zip(names, body.results, shardings, strict=True)
        results = [MeshTensor(one, group, tensor, sharding) for one, tensor, sharding in rows]
        told = [f'mesh="{self._group(group)}"', f"origin=[{of.origin}]"]
        told += [] if of.stage is None else [f"stage={of.stage}"]
        told += [f"in_shardings=[{self._listed(operands)}]"] if operands else []
        told += [f"out_shardings=[{self._listed(results)}]"]
        attributes = [] if of.micro is None else [f"call_counter = {of.micro} : ui32"]
        attributes += [of.half] if of.half else []
        given = ", ".join(f"%arg{i}: {tensor}" for i, tensor in enumerate(body.arguments))
        head = f"{name if count == 1 else f'{name}:{count}'} = mpmd.fragment<{', '.join(told)}>"
        types = f"({', '.join(map(self._type, operands))}) -> ({', '.join(map(self._type, results))})"
        inside = "".join(f"\n      {line}" for line in body.lines)
        self.lines.append(
            f"{head} ({', '.join(one.name for one in operands)}) {{{', '.join(attributes)}}} ({given}) {{{inside}\n"
            f"      mpmd.return {', '.join(body.returned)} : {', '.join(body.results)}\n    }} : {types}"
        )
        return results

    def sent(self, one: MeshTensor, group: int) -> MeshTensor:
        """A value on a group: itself, or what a transfer brings there."""
        if one.group == group:
            return one
        key = one, group
        if key not in self._sent:
            self._sent[key] = self._transferred(one, group)
        return self._sent[key]

    def _transferred(self, one: MeshTensor, group: int) -> MeshTensor:
        if self.symbol(one.group) != self.symbol(group):
            one = self._whole(one)
        made = MeshTensor(f"%t{len(self.lines)}", group, one.tensor, one.sharding)
        said = f"{{sdy.sharding = #sdy.sharding_per_value<[{self._sharding(made)}]>}}"
        self.lines.append(f"{made.name} = mpmd.transfer {said} {one.name} : ({self._type(one)}) -> {self._type(made)}")
        return made

    def _whole(self, one: MeshTensor) -> MeshTensor:
        """A value that lies whole on every device of its group; behind a barrier, as the dialect takes a fragment that
        does nothing for one of its own making."""
        sharding = whole_sharding(one.sharding)
        if one.sharding == sharding:
            return one
        if (one, one.group) not in self._sent:
            line = f"%0 = stablehlo.optimization_barrier %arg0 : {one.tensor}"
            body = MpmdBody((line,), (one.tensor,), (one.tensor,), ("%0",))
            self._sent[one, one.group] = self.fragment(Fragment('"gathered"', one.group), (one,), body, (sharding,))[0]
        return self._sent[one, one.group]

    def module(self, results: Sequence[MeshTensor]) -> str:
        """The text, with these results of the function."""
        meshes = {self.symbol(group): grid for group, grid in enumerate(self.grids)}
        topology = ", ".join(f'<"{self._group(i)}": {_mesh_text(grid, False)}>' for i, grid in enumerate(self.grids))
        arguments = ", ".join(f"{one.name}: {self._type(one)}{self._alias(i)}" for i, one in enumerate(self.arguments))
        types = ", ".join(map(self._type, results))
        body = "\n    ".join((*self.lines, f"return {', '.join(one.name for one in results)} : {types}"))
        return "\n".join(
            (
                f"module @{_symbol(self.name)} {{",
                *(f"  sdy.mesh @{name} = {_mesh_text(grid, True)}" for name, grid in meshes.items()),
                f"  func.func public @main({arguments}) -> ({types})",
                f"      attributes {{topology = #mpmd.topology<{topology}>}} {{",
                f"    {body}\n  }}\n}}",
            )
        )

    def _alias(self, number: int) -> str:
        if number not in self.aliases:
            return ""
        return f" {{tf.aliasing_output = {self.aliases[number]} : i32}}"

    @staticmethod
    def _group(group: int) -> str:
        return f"group{group}"

    def _sharding(self, one: MeshTensor) -> str:
        return f"<@{self.symbol(one.group)}, {one.sharding}>"

    def _listed(self, some: Sequence[MeshTensor]) -> str:
        return ", ".join(map(self._sharding, some))

    def _type(self, one: MeshTensor) -> str:
        return f'!mpmd.mesh_tensor<"{self._group(one.group)}", {one.tensor}, sharding={self._sharding(one)}>'


def _mesh_text(grid: Grid, ordered: bool) -> str:
    axes = ", ".join(f'"{name}"={size}' for name, size in grid.axes)
    is_plain = not ordered or grid.ranks == tuple(range(grid.size))
    return f"<[{axes}]>" if is_plain else f"<[{axes}], device_ids={list(grid.ranks)}>"


def _symbol(name: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name) or "step"


def sharding_of(value: BoundaryValue, grid: Grid, shape: Sequence[int] | None = None) -> str:
    """How an input or output lies; axes into which a dim does not divide evenly are left out, as MPMD asks for.

    Args:
        shape: of what lies like it, such as the value of which it is rows; None: its own.
    """
    sizes, dims = dict(grid.axes), []
    for size, axes in zip(value.shape if shape is None else shape, value.dims, strict=True):
        parts, kept = 1, []
        for name in axes:
            parts *= sizes[str(name)]
            if size % parts:
                break
            kept.append(f'"{name}"')
        dims.append(f"{{{', '.join(kept)}}}")
    terms = [f'"{name}"' for name in grid.names if name in value.partial and value.reduction == "sum"]
    return f"[{', '.join(dims)}]" + (f", unreduced={{{', '.join(terms)}}}" if terms else "")


def whole_sharding(sharding: str) -> str:
    """That of a value that lies whole on every device."""
    count = sharding.partition(", unreduced")[0].count("{")
    return f"[{', '.join(['{}'] * count)}]"
