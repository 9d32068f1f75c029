"""Bodies of manual computations on a mesh of 2x4: every collective, with the layout that it leaves its result in."""

from __future__ import annotations

from functools import partial

import jax
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

MESH = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
manual = partial(jax.shard_map, mesh=MESH, check_vma=False)

COLLECTIVES = {
    "psum": (lambda a: lax.psum(a, "y"), P("x")),
    "psum over both": (lambda a: lax.psum(a, ("y", "x")), P()),
    "pmax": (lambda a: lax.pmax(a, "x"), P(None, "y")),
    "pmin": (lambda a: lax.pmin(a, "y"), P("x")),
    "pmean": (lambda a: lax.pmean(a, "x"), P(None, "y")),
    "all_gather": (lambda a: lax.all_gather(a, "y"), P(None, "x")),
    "all_gather tiled": (lambda a: lax.all_gather(a, "x", axis=1, tiled=True), P(None, "y")),
    "psum_scatter": (lambda a: lax.psum_scatter(a, "y", scatter_dimension=0, tiled=True), P(("x", "y"))),
    "all_to_all": (lambda a: lax.all_to_all(a, "y", 0, 1, tiled=True), P("x", "y")),
    "all_to_all over both": (lambda a: lax.all_to_all(a, ("x", "y"), 0, 1, tiled=True), P("x", "y")),
    "ppermute": (lambda a: lax.ppermute(a, "y", [(0, 1), (1, 2), (3, 0)]), P("x", "y")),
    "ring": (lambda a: lax.ppermute(a, ("x", "y"), [(i, (i + 3) % 8) for i in range(8)]), P("x", "y")),
    "axis_index": (lambda a: a + lax.axis_index("x") * 10 + lax.axis_index("y"), P("x", "y")),
    "unlike blocks": (lambda a: a[:, :1] * lax.axis_index(("y", "x")), P("x", "y")),
}
