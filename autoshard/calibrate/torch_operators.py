"""What one device does, measured by torch: products by shape and type, bandwidth, attention, and what a start costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from autoshard.calibrate.clock import Clock, clock_of, host_clock, seconds_of
from autoshard.core.tensortype import TensorType, dtype
from autoshard.ops.attention import attention
from costmodel.fit_roofline import RooflineSamples
from costmodel.measure import OperatorSample

GRADIENT = 3.5
"""Operations of attention's gradient by those of its forward pass, as its operators count them (`ops.attention_grad`:
scores are made again for queries and for keys)."""
_GRAPHED = 64
"""Operators of one captured graph, whose time is that of their starts on the device."""
_TINY = 256
"""Elements of the smallest operator that is timed."""


@dataclass(frozen=True)
class DeviceEffort:
    """How much to measure.

    Attributes:
        products: (rows, inner, columns) of matrix products.
        kinds: their element types, by autoshard's names; "tf32" is f32 that may be rounded to it.
        nbytes: bytes of an operand of what moves bytes.
        attention: (heads, sequence, width of a head), causal.
        budget: seconds for each figure.
    """

    products: tuple[tuple[int, int, int], ...]
    kinds: tuple[str, ...]
    nbytes: tuple[int, ...]
    attention: tuple[tuple[int, int, int], ...]
    budget: float

    @property
    def attention_kind(self) -> str:
        return "bf16" if "bf16" in self.kinds else "f32"


_SQUARES = tuple((side, side, side) for side in (256, 512, 1024, 2048, 4096, 8192))
_LAYERS = ((8192, 4096, 4096), (4096, 4096, 14336), (8192, 1024, 4096), (8192, 4096, 512), (8192, 128, 8192))
"""Products of transformers' layers, whole and split: few rows, short inner dims, few columns."""
GPU = DeviceEffort(
    (*_SQUARES, *_LAYERS, (16, 4096, 4096), (128, 4096, 4096)),
    ("bf16", "f16", "tf32", "f32"),
    tuple(2**k for k in range(16, 31, 2)),
    ((32, 1024, 128), (32, 4096, 128), (16, 8192, 128), (32, 4096, 64)),
    0.1,
)
"""Some 90 figures of a tenth of a second each, and as much to choose kernels."""
QUICK_GPU = DeviceEffort(
    ((512, 512, 512), (4096, 4096, 4096), (8192, 1024, 4096)),
    ("bf16", "f32"),
    (2**16, 2**22, 2**28),
    ((32, 2048, 128),),
    0.02,
)
CPU = DeviceEffort(
    tuple((side, side, side) for side in (64, 128, 256, 512, 1024)),
    ("f32", "f64"),
    tuple(2**k for k in range(12, 25, 3)),
    ((8, 256, 64), (8, 512, 64)),
    0.05,
)
QUICK_CPU = DeviceEffort(
    ((32, 48, 64), (128, 128, 128), (256, 64, 256)), ("f32",), (2**12, 2**16, 2**20), ((2, 64, 32),), 0.004
)


def effort_of(device: torch.device, quick: bool) -> DeviceEffort:
    """What is measured of a kind of device."""
    if device.type == "cuda":
        return QUICK_GPU if quick else GPU
    return QUICK_CPU if quick else CPU


def measure_device(device: torch.device, effort: DeviceEffort) -> RooflineSamples:
    """Time operators on a device by its own clock, on normal random numbers."""
    clock = clock_of(device)
    with torch.no_grad():
        products = tuple(_products(device, effort, clock))
        moves = tuple(_moves(device, effort, clock))
        launch, host = _starts(device, effort.budget)
    return RooflineSamples(products, moves, tuple(_attention(device, effort, clock)), launch, host, host)


def _drawn(shape: tuple[int, ...], kind: str, device: torch.device) -> torch.Tensor:
    """Normal random numbers: a device that multiplies zeros draws less power, and so is faster."""
    generator = torch.Generator(device).manual_seed(0)
    numbers = torch.randn(shape, generator=generator, device=device)
    return numbers.to(getattr(torch, dtype("f32" if kind == "tf32" else kind).numpy.name))


def _products(device: torch.device, effort: DeviceEffort, clock: Clock) -> Iterator[OperatorSample]:
    for kind in effort.kinds:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        try:
            for rows, inner, columns in effort.products:
                a, b = _drawn((rows, inner), kind, device), _drawn((inner, columns), kind, device)
                made = torch.mm(a, b)
                seconds = seconds_of(lambda a=a, b=b, made=made: torch.mm(a, b, out=made), clock, effort.budget)
                nbytes = sum(one.nbytes for one in (a, b, made))
                yield OperatorSample("MatMul", kind, 2.0 * rows * inner * columns, nbytes, seconds)
        finally:
            torch.set_float32_matmul_precision(before)


def _moves(device: torch.device, effort: DeviceEffort, clock: Clock) -> Iterator[OperatorSample]:
    """Operators with little work, by the bytes of operands and results."""
    for nbytes in effort.nbytes:
        columns = min(1024, max(1, nbytes // 4 // 8))
        x, y = (_drawn((max(1, nbytes // 4 // columns), columns), "f32", device) for _ in range(2))
        made, row = torch.empty_like(x), torch.empty_like(x[:, 0])
        calls: dict[str, tuple[Callable[[], object], int]] = {
            "Identity": (lambda x=x, made=made: made.copy_(x), 2 * x.nbytes),
            "Add": (lambda x=x, y=y, made=made: torch.add(x, y, out=made), 3 * x.nbytes),
            "Tanh": (lambda x=x, made=made: torch.tanh(x, out=made), 2 * x.nbytes),
            "ReduceSum": (lambda x=x, row=row: torch.sum(x, 1, out=row), x.nbytes + row.nbytes),
            "Softmax": (lambda x=x: torch.softmax(x, 1), 2 * x.nbytes),
            "LayerNorm": (lambda x=x: F.layer_norm(x, x.shape[1:]), 2 * x.nbytes),
        }
        for name, (action, counted) in calls.items():
            seconds = seconds_of(action, clock, effort.budget)
            yield OperatorSample(name, "f32", float(x.numel()), counted, seconds)


def _attention(device: torch.device, effort: DeviceEffort, clock: Clock) -> Iterator[OperatorSample]:
    """Causal attention as torch has it: forward, and forward with backward."""
    for heads, sequence, width in effort.attention:
        shape, kind = (1, heads, sequence, width), effort.attention_kind
        q, k, v = (_drawn(shape, kind, device).requires_grad_() for _ in range(3))
        flops = attention.flops((TensorType(shape, dtype(kind)),) * 3, attention.check_attributes({"causal": True}))
        g, nbytes = torch.ones_like(v), 4 * q.nbytes

        def forward(q=q, k=k, v=v) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def both(q=q, k=k, v=v, g=g, forward=forward) -> object:
            return torch.autograd.grad(forward(), (q, k, v), g)

        yield OperatorSample("Attention", kind, flops, nbytes, seconds_of(forward, clock, effort.budget))
        again = seconds_of(both, clock, effort.budget)
        yield OperatorSample("Attention", kind, (1 + GRADIENT) * flops, 3 * nbytes, again)


def _starts(device: torch.device, budget: float) -> tuple[float, float]:
    """Seconds that a device takes for the smallest operator, and its host to start one; 0 where it waits for each."""
    x = _drawn((_TINY,), "f32", device)

    def tiny() -> object:
        return torch.add(x, 1.0, out=x)

    if device.type != "cuda":
        return seconds_of(tiny, host_clock, budget), 0.0
    graph = torch.cuda.CUDAGraph()
    tiny()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(_GRAPHED):
            tiny()
    started = seconds_of(graph.replay, clock_of(device), budget) / _GRAPHED
    return started, min(_enqueued(tiny) for _ in range(5))


def _enqueued(action: Callable[[], object], count: int = 500) -> float:
    """Seconds that the host takes to start an operator, the device far behind or not."""
    torch.cuda.synchronize()
    seconds = host_clock(action, count)
    torch.cuda.synchronize()
    return seconds


def memory_of(device: torch.device, otherwise: int) -> int:
    """Bytes of the device's memory; `otherwise` where it is the host's."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else otherwise


def name_of(device: torch.device) -> str:
    """What the device is called."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this machine's CPU by torch"


def host_copies(device: torch.device, budget: float, nbytes: int = 2**24) -> tuple[float, float]:
    """Seconds and bytes a second of copies from the device to the host, or on it."""
    small, large = _drawn((1,), "f32", device), _drawn((nbytes // 4,), "f32", device)
    latency = seconds_of(lambda: small.to("cpu", copy=True), host_clock, budget)
    seconds = seconds_of(lambda: large.to("cpu", copy=True), host_clock, budget)
    return latency, nbytes / max(seconds - latency, 0.1 * seconds)
