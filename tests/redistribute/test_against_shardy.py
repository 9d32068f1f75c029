"""Bytes received never above those of Shardy's own passes, on changes of final layouts (all that they express)."""

from __future__ import annotations

import math
import random
import re

import jax  # noqa: F401  (Shardy's passes come with it)
import pytest

from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.redistribute.digits import cutter
from autoshard.redistribute.planner import moved, plan_steps
from benchmarks.redistribution import SMALL
from costmodel import bytes_moved
from tests.propagate.shardy import shardy
from tests.redistribute import virtual_ranks as ranks

pytestmark = pytest.mark.jax

PASSES = ("func.func(sdy-insert-explicit-reshards{enable-full-version=true})", "func.func(sdy-reshard-to-collectives)")
ITEMSIZE = 4
_COLLECTIVE = re.compile(
    r"sdy\.(all_gather|all_slice|all_to_all|collective_permute)\s+(\[.*?\] )?%.*?out_sharding=(<.*?\]>)"
)
_REF = re.compile(r'"(\w+)"(?::\((\d+)\)(\d+))?')


def _layout(draw: random.Random, mesh: Mesh, rank: int) -> Layout:
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    for name in draw.sample(mesh.names, len(mesh.names)):
        rest = mesh.axis(name)
        while rest.size > 1:
            sizes = [size for size in range(2, rest.size + 1) if rest.size % size == 0]
            piece, rest = rest.split(draw.choice(sizes))
            dim = draw.randrange(rank + 1)
            if dim < rank:
                dims[dim].append(piece)
    return Layout(mesh, dims)


def _changes(mesh: Mesh, count: int) -> list[tuple[Layout, Layout, tuple[int, ...]]]:
    draw = random.Random(str(mesh))
    found = []
    while len(found) < count:
        rank = draw.choice([1, 2, 3])
        before, after = _layout(draw, mesh, rank), _layout(draw, mesh, rank)
        if before is not after and cutter(before, after) is not None:
            found.append((before, after, ranks.shape_for(before, after, extra=5)))
    return found


def _sharding(layout: Layout) -> str:
    def piece(ref: AxisRef) -> str:
        whole = ref.size == layout.mesh.sizes[ref.name]
        return f'"{ref.name}"' + ("" if whole else f":({ref.pre}){ref.size}")

    return "[" + ", ".join("{" + ", ".join(map(piece, refs)) + "}" for refs in layout.dims) + "]"


def _module(mesh: Mesh, changes: list[tuple[Layout, Layout, tuple[int, ...]]]) -> str:
    axes = ", ".join(f'"{name}"={size}' for name, size in mesh.axes)
    lines = [f"sdy.mesh @mesh = <[{axes}]>"]
    for i, (before, after, shape) in enumerate(changes):
        of = f"tensor<{'x'.join(map(str, shape))}xf32>"
        lines += [
            f"func.func @f{i}(%arg0: {of} {{sdy.sharding = #sdy.sharding<@mesh, {_sharding(before)}>}}) -> "
            f"({of} {{sdy.sharding = #sdy.sharding<@mesh, {_sharding(after)}>}}) {{",
            f"  %0 = stablehlo.negate %arg0 "
            f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {_sharding(after)}>]>}} : {of}",
            f"  return %0 : {of}",
            "}",
        ]
    return "\n".join(lines)


def _parsed(mesh: Mesh, sharding: str) -> Layout:
    dims = re.findall(r"\{(.*?)\}", sharding)
    return Layout(mesh, [[mesh.ref(f"{n}:({p}){s}" if p else n) for n, p, s in _REF.findall(dim)] for dim in dims])


def _theirs(body: str, before: Layout, after: Layout, shape: tuple[int, ...]) -> float:
    """Bytes that one rank receives in all collectives of a function of Shardy's."""
    now, total = before, 0.0
    for kind, params, sharding in _COLLECTIVE.findall(body):
        nxt = _parsed(before.mesh, sharding)
        local, result = (math.prod(layout.local_shape(shape)) * ITEMSIZE for layout in (now, nxt))
        if kind == "all_gather":
            total += bytes_moved("all_gather", result, result // local)
        elif kind == "all_to_all":
            group = math.prod(before.mesh.ref(f"{n}:({p}){s}" if p else n).size for n, p, s in _REF.findall(params))
            total += bytes_moved("all_to_all", local, group)
        elif kind == "collective_permute":
            total += bytes_moved("permute", local, before.mesh.devices)
        now = nxt
    assert now is after, f"Shardy's collectives end at [{now}], not at [{after}]:\n{body}"
    return total


@pytest.mark.parametrize("mesh", SMALL, ids=str)
def test_never_above_shardy(mesh):
    changes = _changes(mesh, 300)
    text = shardy(_module(mesh, changes), PASSES)
    bodies = dict(re.findall(r"func\.func @(f\d+)\((.*?)\n  \}", text, re.DOTALL))
    assert len(bodies) == len(changes)
    less = 0
    for i, (before, after, shape) in enumerate(changes):
        theirs = _theirs(bodies[f"f{i}"], before, after, shape)
        ours = moved(plan_steps(before, after, shape), shape) * ITEMSIZE
        assert ours <= theirs * (1 + 1e-9), f"[{before}] -> [{after}] of {shape}: {ours} bytes, Shardy {theirs}"
        less += ours < theirs * (1 - 1e-9)
    assert less > 0, "these changes are too easy to tell the two apart"
