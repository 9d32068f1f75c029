"""What XLA does with a case, on host devices of this process: its collectives, and its numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from case import Case, Side
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.xla_collectives import collectives


def spec(layout: str) -> PartitionSpec:
    """A layout's text as JAX has it."""
    dims = [one.strip() for one in layout.split(",")] if layout else []
    return PartitionSpec(*(None if one == "-" else tuple(one.split(".")) for one in dims))


def mesh_of(case: Case, kind: AxisType) -> jax.sharding.Mesh:
    """The mesh of a case on the first devices."""
    axes = {name: int(size) for name, size in (one.split("=") for one in case.mesh.split())}
    count = int(np.prod(list(axes.values())))
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes), devices=jax.devices()[:count]
    )


def lowered(case: Case) -> Any:
    """The program as JAX lowers it for a mesh of automatic axes: what ours plans, too."""
    mesh = mesh_of(case, AxisType.Auto)
    placed = [NamedSharding(mesh, spec(one)) for one in case.layouts]
    step = jax.jit(case.program, in_shardings=tuple(placed[: len(case.inputs)]), out_shardings=placed[-1])
    return step.lower(*(jax.ShapeDtypeStruct(*one) for one in case.inputs))


def measure(case: Case, arrays: list[np.ndarray], whole: np.ndarray) -> Side:
    """Compile and run it."""
    try:
        compiled, results = _explicit(case, arrays) if case.explicit else _automatic(case, arrays)
    except Exception as error:  # whatever a peer refuses with
        return Side(refused=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
    side = Side(right=bool(np.allclose(np.asarray(results), whole, rtol=1e-4, atol=1e-4)))
    for one in collectives(compiled.as_text(), mesh_of(case, AxisType.Auto).size):
        side.add(one["kind"], one["bytes_moved"] * one["executions"])
    return side


def _automatic(case: Case, arrays: list[np.ndarray]) -> tuple[Any, Any]:
    compiled, mesh = lowered(case).compile(), mesh_of(case, AxisType.Auto)
    given = [jax.device_put(one, NamedSharding(mesh, spec(of))) for one, of in zip(arrays, case.layouts, strict=False)]
    return compiled, compiled(*given)


def _explicit(case: Case, arrays: list[np.ndarray]) -> tuple[Any, Any]:
    mesh = mesh_of(case, AxisType.Explicit)
    with jax.set_mesh(mesh):
        pairs = zip(arrays, case.layouts, strict=False)
        given = [jax.device_put(one, NamedSharding(mesh, spec(of))) for one, of in pairs]
        compiled = jax.jit(case.program).lower(*given).compile()
        return compiled, compiled(*given)
