"""What Shardy's own passes would move to change a layout: `sdy-insert-explicit-reshards`, `sdy-reshard-to-collectives`.

They express final layouts of sizes that divide, whose pieces of one mesh axis fit each other. A collective permute is
counted as the block that it sends, the others as costmodel counts them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from autoshard.layout import Layout, Mesh
from autoshard.redistribute.positions import cutter
from costmodel import bytes_moved

Change = tuple[Layout, Layout, tuple[int, ...]]

PASSES = ("func.func(sdy-insert-explicit-reshards{enable-full-version=true})", "func.func(sdy-reshard-to-collectives)")
ITEMSIZE = 4
_COLLECTIVE = re.compile(
    r"sdy\.(all_gather|all_slice|all_to_all|collective_permute)\s+(\[.*?\] )?%.*?out_sharding=(<.*?\]>)"
)
_REF = re.compile(r'"(\w+)"(?::\((\d+)\)(\d+))?')


def expressible(before: Layout, after: Layout, shape: Sequence[int]) -> bool:
    """Whether Shardy's passes can be asked for this change."""
    final = not before.partial and not after.partial and before is not after
    return final and before.divides(shape) and after.divides(shape) and cutter(before, after) is not None


def received(mesh: Mesh, changes: Sequence[Change], run: Callable[[str], str]) -> list[float | None]:
    """Bytes of f32 that one rank receives in all collectives of each change; None where they end at another layout.

    The passes of jaxlib 0.10.2 leave [a:(2)2.b, a:(1)2] where [b.a:(2)2, a:(1)2] was asked for, from [a, b].

    Args:
        run: Shardy's passes `PASSES`, text of a module to text.
    """
    text = run(_module(mesh, changes))
    bodies = dict(re.findall(r"func\.func @f(\d+)\((.*?)\n  \}", text, re.DOTALL))
    assert len(bodies) == len(changes), f"{len(changes)} functions became {len(bodies)}"
    return [_bytes(bodies[str(i)], *change) for i, change in enumerate(changes)]


def in_this_process(text: str) -> str:
    """Shardy's passes, run here."""
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    with jax_mlir.make_ir_context() as context:
        context.enable_multithreading(False)  # MLIR's threads can wait for Python's lock for ever
        module = ir.Module.parse(text)
        PassManager.parse(f"builtin.module({','.join(PASSES)})").run(module.operation)
        return str(module)


def _sharding(layout: Layout) -> str:
    def piece(ref) -> str:
        whole = ref.size == layout.mesh.sizes[ref.name]
        return f'"{ref.name}"' + ("" if whole else f":({ref.pre}){ref.size}")

    return "[" + ", ".join("{" + ", ".join(map(piece, refs)) + "}" for refs in layout.dims) + "]"


def _module(mesh: Mesh, changes: Sequence[Change]) -> str:
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


def _bytes(body: str, before: Layout, after: Layout, shape: tuple[int, ...]) -> float | None:
    """Bytes that one rank receives in the collectives of one function's text."""
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
    return total if now is after else None
