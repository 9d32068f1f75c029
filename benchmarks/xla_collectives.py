"""What XLA's partitioner moves: a StableHLO module compiled for virtual CPU devices, its collectives read from the HLO.

    python benchmarks/xla_collectives.py 8 MODULE.mlir ...      # JSON, one object per module

Bytes are what one device sends under a bandwidth-optimal algorithm: (g-1)/g of an all-gather's output, of a
reduce-scatter's input and of an all-to-all, twice that of an all-reduce, all of a permute. `credited` counts an
all-reduce of which every user keeps only a slice as if the compiler had made a reduce-scatter of it, which XLA does for
other devices than CPUs. Collectives in loops count once: as often as they stand in the program.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
SIZES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4}
SIZES |= {"s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}
# Operations of which a piece of the result needs no more than such a piece of the operand.
_MOVING = {"bitcast", "copy", "reshape", "convert", "transpose"}
_UNARY = {"negate", "exponential", "tanh", "sqrt", "rsqrt", "logistic", "log", "abs", "sign", "cosine", "sine", "not"}
_BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "select", "compare", "and", "or"}
LOCAL = _MOVING | _UNARY | _BINARY
_LINE = re.compile(r"\s*(ROOT )?%(\S+) = (\((?:[^()]|\([^()]*\))*\)|\S+) ([\w-]+)\((.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")


@dataclass
class Line:
    """An instruction: its shape in text, what it reads, and in which computation it stands."""

    name: str
    shape: str
    op: str
    operands: list[str]
    text: str
    is_root: bool


@dataclass
class Computation:
    lines: dict[str, Line] = field(default_factory=dict)
    users: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))

    def parameter(self, number: int) -> str:
        return next(one.name for one in self.lines.values() if one.op == "parameter" and one.operands == [str(number)])


def computations(text: str) -> dict[str, Computation]:
    """The computations of an HLO module by name."""
    found: dict[str, Computation] = {}
    now = Computation()
    for row in text.splitlines():
        header = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", row)
        if header:
            now = found[header[1]] = Computation()
            continue
        match = _LINE.match(row)
        if match:
            line = _line(match)
            now.lines[line.name] = line
            for one in dict.fromkeys(line.operands):
                now.users[one].append(line)
    return found


def _line(match: re.Match) -> Line:
    inside = match[5].split(")", 1)[0]
    operands = [match[5].split(")")[0]] if match[4] == "parameter" else re.findall(r"%([\w.\-]+)", inside)
    return Line(match[2], match[3], match[4], operands, match[0], bool(match[1]))


def nbytes(shape: str) -> int:
    """Bytes of a shape, or of all parts of a tuple."""
    return sum(
        SIZES[of] * math.prod(int(one) for one in dims.split(",") if one)
        for of, dims in _SHAPE.findall(shape)
        if of in SIZES
    )


def group_size(text: str, devices: int) -> int:
    """The ranks of a group; of all devices where the text lists none."""
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", text)
    if listed:
        return len(listed[1].split(","))
    tiled = re.search(r"replica_groups=\[(\d+),(\d+)\]", text)
    return int(tiled[2]) if tiled else devices


def collectives(text: str, devices: int) -> list[dict[str, Any]]:
    """The collectives of an HLO module: kind, group, bytes, bytes_moved, the bytes with scatters credited, and
    executions, how often a step runs it."""
    known = computations(text)
    times = _executions(known)
    found = []
    for name, one in known.items():
        for line in one.lines.values():
            kind = line.op.removesuffix("-start")
            if kind not in KINDS:
                continue
            g = 2 if kind == "collective-permute" else group_size(line.text, devices)
            size = nbytes(line.shape)
            moved = _moved(kind, size, g)
            credited = moved if kind != "all-reduce" else sum(_credited(known, one, line, g))
            told = {"kind": kind, "group_size": g, "bytes": size, "bytes_moved": moved, "credited": credited}
            found.append({**told, "executions": times[name]})
    return found


def _executions(known: dict[str, Computation]) -> dict[str, int]:
    """How often a step runs each computation: the trips of the loops around it, as far as XLA knows them."""
    times = dict.fromkeys(known, 1)
    for name in reversed(known):  # the text has callers behind what they call
        for line in known[name].lines.values():
            called = re.search(r"(?:body|to_apply)=%?([\w.\-]+)", line.text)
            if called and called[1] in times:
                trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', line.text)
                times[called[1]] = times[name] * (int(trips[1]) if trips else 1)
    return times


def _moved(kind: str, size: float, g: int) -> float:
    share = (g - 1) / g
    factor = {"all-reduce": 2 * share, "reduce-scatter": share * g, "collective-permute": 1.0}
    return factor.get(kind, share) * size


def _credited(known: dict[str, Computation], inside: Computation, line: Line, g: int) -> list[float]:
    """The bytes of an all-reduce's tensors, each scattered as far as all its users keep slices only."""
    shapes = [f"{of}[{dims}]" for of, dims in _SHAPE.findall(line.shape)]
    if not line.shape.startswith("("):
        return [_scattered(nbytes(shapes[0]), g, _kept(known, inside, line.name))]
    moved = []
    for i, shape in enumerate(shapes):
        users = [user for user in inside.users[line.name] if f"index={i}" in user.text.replace(",", " ,").split()]
        kept = max((_kept(known, inside, user.name) for user in users), default=1.0) if not line.is_root else 1.0
        moved.append(_scattered(nbytes(shape), g, kept))
    return moved


def _scattered(size: float, g: int, kept: float) -> float:
    """Bytes to reduce a tensor over g devices of which each keeps that part: scattered first, then the rest reduced."""
    parts = math.gcd(g, round(1 / kept)) if kept > 0 else g
    rest = g // parts
    return (parts - 1) / parts * size + 2 * (rest - 1) / rest * size / parts


def _kept(known: dict[str, Computation], inside: Computation, name: str) -> float:
    """The largest share of a tensor that some user keeps of it; 1 where one needs all."""
    line = inside.lines[name]
    users = inside.users[name]
    if line.is_root or not users:
        return 1.0
    return max(_kept_by(known, inside, name, user) for user in users)


def _kept_by(known: dict[str, Computation], inside: Computation, name: str, user: Line) -> float:
    if user.op in ("dynamic-slice", "slice"):
        return nbytes(user.shape) / max(nbytes(inside.lines[name].shape), 1)
    if user.op in LOCAL:
        return _kept(known, inside, user.name)
    if user.op in ("fusion", "call"):
        called = re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", user.text)
        body = known[called[1]] if called else Computation()
        numbers = [i for i, one in enumerate(user.operands) if one == name]
        return max(_within(known, body, inside, user, body.parameter(i)) for i in numbers)
    return 1.0


def _within(known: dict[str, Computation], body: Computation, around: Computation, call: Line, name: str) -> float:
    """The same inside of a called computation; what is its result goes on outside of it."""
    line = body.lines[name]
    if line.is_root:
        return _kept(known, around, call.name)
    kept = 0.0
    for user in body.users[name]:
        if user.op in LOCAL:
            kept = max(kept, _within(known, body, around, call, user.name))
        else:
            kept = max(kept, _kept_by(known, body, name, user))
    return kept or 1.0


def compiled(text: str, devices: int) -> str:
    """The HLO that XLA's partitioner, with Shardy's propagation, makes of a module for that many CPU devices."""
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
    from jaxlib.mlir import ir

    placed = np.arange(devices).reshape(1, devices)
    options = compiler.get_compile_options(num_replicas=1, num_partitions=devices, device_assignment=placed)
    options.executable_build_options.use_shardy_partitioner = True
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        over = xla_client.DeviceList(tuple(jax.devices()))
        made = compiler.backend_compile_and_load(jax.devices()[0].client, module, over, options, [])
    return made.hlo_modules()[0].to_string()


def main() -> None:
    devices = int(sys.argv[1])
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices} " + os.environ.get("XLA_FLAGS", "")
    os.environ["JAX_PLATFORMS"] = "cpu"
    found = {}
    for path in sys.argv[2:]:
        hlo = compiled(Path(path).read_text(), devices)
        if os.environ.get("AUTOSHARD_KEEP_HLO"):
            Path(path).with_suffix(".hlo").write_text(hlo)
        found[Path(path).stem] = collectives(hlo, devices)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
