"""Translators of random numbers."""

from __future__ import annotations

import zlib
from typing import Any

from autoshard.frontends.stablehlo.attributes import tensor_type
from autoshard.frontends.stablehlo.linalg import word
from autoshard.frontends.stablehlo.table import Translation, translates


@translates("stablehlo.rng_bit_generator")
def _(op: Any) -> Translation:
    of = tensor_type(str(op.results[1].type))
    algorithm = word(op, "rng_algorithm")
    return "RngBitGenerator", {"algorithm": algorithm, "shape": of.shape, "dtype": of.dtype.name}


@translates("stablehlo.rng")
def _(op: Any) -> Translation:
    """StableHLO leaves the numbers open: each operation draws by a seed that its place in the module gives it."""
    seed = zlib.crc32(f"{op.results[0].get_name()} {op.location}".encode())
    shape = tensor_type(str(op.results[0].type)).shape
    return "Rng", {"distribution": word(op, "rng_distribution"), "shape": shape, "seed": seed}
