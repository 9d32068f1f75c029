"""Bytes that fused kernels move, against what torch's inductor says of its own for the same programs.

    python benchmarks/against_inductor.py [NAME ...] [--json FILE]

Each program is a function of f32 tensors, or its gradient. Inductor compiles it for this processor and counts the bytes
that each of its kernels reads and writes, products included (`inductor_metrics`); ours are those of `fused(graph, how)`
of the imported program. A ratio above 1: ours are more.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch._inductor import config
from torch.nn import functional

from autoshard.frontends.torch.load import from_torch
from autoshard.ir.fusion import fused
from autoshard.ir.graph import Graph
from autoshard.transform.inline import inline

ROWS, COLUMNS = 96, 160
X, BIAS, SQUARE = (ROWS, COLUMNS), (COLUMNS,), (COLUMNS, COLUMNS)
HOW = "inductor"


def _norm(x, scale):
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * scale


def _adam(p, m, v, g):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.1 * m / (v.sqrt() + 1e-8), m, v


def _scores(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v


HEADS = (4, 12, 24, 16)
FORWARD: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "chain": (lambda x: torch.tanh(torch.exp(-x) + 1), [X]),
    "two": (lambda x, y: x * y + torch.sin(x), [X, X]),
    "bias": (lambda x, b: torch.relu(x + b), [X, BIAS]),
    "softmax": (lambda x: torch.softmax(x, -1), [X]),
    "norm": (_norm, [X, BIAS]),
    "layer norm": (lambda x, a, b: functional.layer_norm(x, (COLUMNS,), a, b), [X, BIAS, BIAS]),
    "sum": (lambda x: (x * x).sum(1), [X]),
    "column": (lambda x: (x * x).sum(0), [X]),
    "product": (lambda x, a: torch.relu(x @ a), [X, SQUARE]),
    "linear": (lambda x, a, b: functional.gelu(functional.linear(x, a, b)), [X, SQUARE, BIAS]),
    "block": (lambda x, a, b: x + functional.gelu(x @ a) @ b, [X, SQUARE, SQUARE]),
    "gated": (lambda x, a, b: functional.silu(x @ a) * (x @ b), [X, SQUARE, SQUARE]),
    "adam": (_adam, [X] * 4),
    "momentum": (lambda p, m, g: (p - 0.1 * (0.9 * m + g), 0.9 * m + g), [X] * 3),
    "loss": (lambda x, y: -(torch.log_softmax(x, -1) * y).sum(-1), [X, X]),
    "sigmoid": (lambda x, y: torch.sigmoid(x) * y + (1 - torch.sigmoid(x)) * x, [X, X]),
    "choice": (lambda x, y: torch.where(x > y, x - y, 0.5 * y), [X, X]),
    "turned": (lambda x: torch.exp(x.T) + 1, [X]),
    "largest": (lambda x: x - x.amax(-1, keepdim=True), [X]),
    "scores": (_scores, [HEADS] * 3),
}
AGAIN = ("chain", "two", "bias", "softmax", "norm", "layer norm", "product", "block", "gated", "sigmoid")


class _Program(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> Any:
        return self.function(*x)


def programs() -> dict[str, tuple[Callable[..., Any], list[torch.Tensor]]]:
    """By name the function and its arguments: of 20 programs, and the gradients of ten."""
    drawn = torch.Generator().manual_seed(0)
    made = {
        name: (function, [torch.rand(shape, generator=drawn) for shape in shapes])
        for name, (function, shapes) in FORWARD.items()
    }
    again = {f"gradient of {name}": (_gradient(made[name][0], len(made[name][1])), made[name][1]) for name in AGAIN}
    return {**made, **again}


def _gradient(function: Callable[..., Any], operands: int) -> Callable[..., Any]:
    return torch.func.grad(lambda *x: function(*x).sum(), tuple(range(operands)))


class _Heard(logging.Handler):
    """Adds up what inductor logs of the graphs that it compiles."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.nbytes = self.kernels = 0

    def emit(self, record: logging.LogRecord) -> None:
        told: Any = record.args
        if isinstance(told, dict) and "num_bytes_accessed" in told:
            self.nbytes += told["num_bytes_accessed"]
            self.kernels += len(told["nodes_num_elem"])


def theirs(function: Callable[..., Any], arguments: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Bytes that inductor's kernels read and write, and how many kernels there are."""
    heard, log = _Heard(), logging.getLogger("torch._inductor.compile_fx.__inductor_metrics")
    torch._dynamo.reset()
    log.addHandler(heard)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        with config.patch(force_disable_caches=True):
            torch.compile(function, backend="inductor", fullgraph=True)(*arguments)
    finally:
        log.setLevel(level)
        log.removeHandler(heard)
    return heard.nbytes, heard.kernels


def ours(function: Callable[..., Any], arguments: Sequence[torch.Tensor], how: str = HOW) -> tuple[int, int]:
    """The same of the kernels that prices are of."""
    return moved(inline(from_torch(_Program(function), tuple(arguments)).traced.graph), how)


def moved(graph: Graph, how: str) -> tuple[int, int]:
    nbytes = launches = 0
    for node in fused(graph, how)[0].nodes:
        traffic, types = node.traffic, (*node.operand_types, *node.result_types)
        assert traffic is not None
        through_memory = zip(types, (*traffic.operands, *traffic.results), strict=True)
        nbytes += sum(of.nbytes for of, is_moved in through_memory if is_moved)
        launches += traffic.launches
    return nbytes, launches


def measure(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row per program: bytes and kernels of both, and the ratio of bytes."""
    rows = []
    for name, (function, arguments) in programs().items():
        if names and name not in names:
            continue
        (their_bytes, their_kernels), (our_bytes, our_kernels) = theirs(function, arguments), ours(function, arguments)
        rows.append({
            "program": name, "inductor": their_bytes, "ours": our_bytes, "ratio": our_bytes / their_bytes,
            "inductor_kernels": their_kernels, "kernels": our_kernels,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = measure(chosen.names)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=2))
    table = Table("program", "inductor KB", "ours KB", "ratio", "kernels", "ours")
    for row in rows:
        kilobytes = (f"{row[of] / 1e3:.0f}" for of in ("inductor", "ours"))
        table.add_row(
            row["program"], *kilobytes, f"{row['ratio']:.2f}", str(row["inductor_kernels"]), str(row["kernels"])
        )
    out = Console()
    out.print(table)
    ratios = [row["ratio"] for row in rows]
    out.print(f"{len(rows)} programs: median {median(ratios):.3f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
