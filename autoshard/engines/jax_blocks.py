"""Exported code's values on JAX: constants, the mesh of a grid, and how values lie on it.

This file needs numpy and jax, and files that need no more: exported code carries it.
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from autoshard.engines.grid import Grid
from autoshard.engines.standalone import BoundaryValue


def constant(kind: str, shape: tuple[int, ...], packed: str) -> np.ndarray:
    """An array of these bytes (zlib, base64)."""
    return np.frombuffer(zlib.decompress(b64decode(packed)), jnp.dtype(kind)).reshape(shape)


def mesh_of(grid: Grid, ranks: Sequence[int], devices: Sequence[Any] | None = None) -> Mesh:
    """Devices as a mesh: for each rank of the grid which one of them, by default of all that JAX has, it is."""
    given = list(jax.devices() if devices is None else devices)
    if len(given) <= max(ranks):
        raise SystemExit(f"the plan is for {max(ranks) + 1} devices, but JAX has {len(given)}")
    placed = np.array([given[ranks[one]] for one in grid.ranks], dtype=object)
    return Mesh(placed.reshape([size for _, size in grid.axes]), grid.names)


def spec_of(value: BoundaryValue) -> PartitionSpec:
    """How it lies; ahead of its dims, where it is partial, one in which each part of the axes holds its own terms."""
    dims = (axes or None for axes in value.dims)
    return PartitionSpec(value.partial, *dims) if value.partial else PartitionSpec(*dims)
