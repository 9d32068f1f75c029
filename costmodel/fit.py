"""From measurements to hardware: curves of collectives and operators by robust least squares on relative errors.

`fit_device(samples of operators, ...)` and `fit_link(samples of collectives, ...)` make the parts of a Hardware;
`compare_device` and `compare_link` set them against the samples.
Coefficients are never negative (scipy's nnls), so more bytes never cost less; samples far off, as another process
on the machine leaves them, weigh less (iterated weights of the soft L1 loss).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.collectives import bytes_moved, seconds
from costmodel.compute import operator_seconds
from costmodel.curves import CollectiveCurve, OperatorCurve
from costmodel.hardware import Device, Link
from costmodel.measure import CollectiveSample, OperatorSample, ProgramSample

_TOLERANCE = 0.15
"""Relative errors well above this count less than by their square."""
_ROUNDS = 8
_LEAST_PER_BYTE = 1e-13
"""10 TB/s: no message goes faster; keeps a noisy curve from claiming that bytes are free."""
_LEAST_LATENCY = 1e-8
"""10 ns: no message comes sooner; a noisy curve would have many small ones for nothing."""
_MICRO = 1e-6
_SPREAD = 3.0
"""Of operators errors well above this: they differ by what lies where, and each is right in its place."""
_GRAIN = 1e-4
"""100 us: what is quicker is fitted no closer. Steps are sums of operators, of which those that take longer count more,
and what is quick differs most by what lies where: a view takes nothing, or, of what lies otherwise, a copy."""
_PROGRAM_GRAIN = 3e-4
"""300 us, the same of whole steps: those of tiny models are mostly Python's time."""
_LEAST_PER_SIDE = 3
"""Sizes that each line of a bent curve is fitted to, at least: fewer would follow the noise."""


@dataclass(frozen=True)
class CurveErrors:
    """One curve against its samples: relative errors of its seconds, and the largest sample with its prediction."""

    what: str
    samples: int
    median_error: float
    worst_error: float
    measured: float
    fitted: float


@dataclass(frozen=True)
class Slowdown:
    """How many times as long operators and collectives take in whole programs, and what each collective takes more, and
    each tensor that is put into a buffer that several share."""

    computing: float = 1.0
    talking: float = 1.0
    each: float = 0.0
    packing: float = 0.0

    def seconds(self, program: ProgramSample) -> float:
        """What a program takes."""
        late = self.each * program.collectives + self.packing * program.packed
        return self.computing * program.computing + self.talking * program.talking + late


def fit_collectives(samples: Sequence[CollectiveSample]) -> tuple[CollectiveCurve, ...]:
    """A curve for each kind and number of ranks that was measured.

    Raises:
        ValueError: a sample without a time, or fewer than two sizes of a kind.
    """
    curves = []
    for kind, ranks in dict.fromkeys((one.kind, one.ranks) for one in samples):
        own = [one for one in samples if (one.kind, one.ranks) == (kind, ranks)]
        nbytes = np.array([one.nbytes for one in own], float)
        if len(set(nbytes.tolist())) < 2:
            raise ValueError(f"cannot fit {kind} among {ranks} ranks to one size; measure at least two")
        times = _times([one.seconds for one in own])
        (latency, below, beyond), knee = _bent(np.ones((len(own), 1)), nbytes, times)
        latency = max(latency, _LEAST_LATENCY)
        below, beyond = max(below, _LEAST_PER_BYTE), max(beyond, _LEAST_PER_BYTE)
        curves.append(CollectiveCurve(kind, ranks, latency, below, knee, beyond))
    return tuple(curves)


def fit_operators(samples: Sequence[OperatorSample]) -> tuple[OperatorCurve, ...]:
    """A curve for each operator and dtype that was measured; operations count for those that work more than they move.

    Raises:
        ValueError: a sample without a time.
    """
    curves = []
    for operator, dtype in dict.fromkeys((one.operator, one.dtype) for one in samples):
        own = [one for one in samples if (one.operator, one.dtype) == (operator, dtype)]
        flops, nbytes = np.array([one.flops for one in own], float), np.array([one.nbytes for one in own], float)
        ones, times = np.ones(len(own)), _times([one.seconds for one in own])
        if _grows_apart(flops, nbytes):
            (launch, per_flop, below, beyond), knee = _bent(np.stack([ones, flops], 1), nbytes, times, _GRAIN)
            curves.append(OperatorCurve(operator, dtype, launch, per_flop, below, knee, beyond))
        else:
            (launch, below, beyond), knee = _bent(ones[:, None], nbytes, times, _GRAIN)
            curves.append(OperatorCurve(operator, dtype, launch, 0.0, below, knee, beyond))
    return tuple(curves)


def fit_device(name: str, samples: Sequence[OperatorSample], memory_bytes: int, source: str) -> Device:
    """A device from measured operators: curves, and for operators that have none a roofline.

    Raises:
        ValueError: nothing was measured that does operations in f32, or nothing that mostly moves bytes.
    """
    curves = fit_operators(samples)
    launches = [one.launch for one in curves if one.launch > 0]  # views have none
    return Device(
        name,
        _peaks(samples),
        memory_bandwidth=_bandwidth(samples),
        memory_bytes=memory_bytes,
        launch_seconds=statistics.median(launches or [0.0]),
        compute_efficiency=1.0,  # the rates are measured ones
        memory_efficiency=1.0,
        source=source,
        operators=curves,
    )


def fit_programs(samples: Sequence[ProgramSample]) -> Slowdown:
    """How whole programs meet a device and its links.

    A collective that is done again and again finds its data and code in caches, and its ranks together; among
    operators it does not. Nor does that make a link faster than its collectives were.

    Raises:
        ValueError: a sample without a time.
    """
    if not samples:
        return Slowdown()
    talking = np.array([one.talking for one in samples])
    rows = [[one.computing, one.talking, one.collectives * _MICRO, one.packed * _MICRO] for one in samples]
    (computing, more, each, packing), _ = _solve(
        np.array(rows), _times([one.seconds for one in samples]), talking, _PROGRAM_GRAIN
    )
    return Slowdown(computing, 1 + more, each * _MICRO, packing * _MICRO)


def fit_link(name: str, samples: Sequence[CollectiveSample], source: str) -> Link:
    """A link from measured collectives: curves, and the least latency and most bandwidth of all.

    Raises:
        ValueError: no collective was measured, or one of a single size.
    """
    curves = fit_collectives(samples)
    if not curves:
        raise ValueError(f"no collective was measured for link {name!r}; a job of at least 2 ranks is needed")
    # The best of all bounds every price from below, as the search for redistributions takes it to.
    fastest = max(bytes_moved(one.kind, 1.0, one.ranks) / min(one.per_byte, one.per_byte_beyond) for one in curves)
    return Link(name, min(one.latency for one in curves), fastest, source, curves)


def compare_link(link: Link, samples: Sequence[CollectiveSample]) -> tuple[CurveErrors, ...]:
    """What the link says of each kind and number of ranks against what was measured."""
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for one in samples:
        predicted = float(seconds(one.kind, float(one.nbytes), one.ranks, link))
        groups.setdefault(f"{one.kind} of {one.ranks}", []).append((one.nbytes, one.seconds, predicted))
    return tuple(_comparison(what, rows) for what, rows in groups.items())


def compare_device(device: Device, samples: Sequence[OperatorSample]) -> tuple[CurveErrors, ...]:
    """What the device says of each operator against what was measured, one behind the other, each started by a host."""
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for one in samples:
        busy = float(operator_seconds(one.flops, one.nbytes, device, one.dtype, one.operator))
        predicted = max(busy, device.host_seconds)
        name = one.operator if one.dtype == "f32" else f"{one.operator} {one.dtype}"
        groups.setdefault(name, []).append((one.flops + one.nbytes, one.seconds, predicted))
    return tuple(_comparison(what, rows) for what, rows in groups.items())


def compare_programs(slowdown: Slowdown, samples: Sequence[ProgramSample]) -> tuple[CurveErrors, ...]:
    """What is said of each program against what was measured."""
    rows = [(one.name, [(1.0, one.seconds, slowdown.seconds(one))]) for one in samples]
    return tuple(_comparison(name, row) for name, row in rows)


def _comparison(what: str, rows: list[tuple[float, float, float]]) -> CurveErrors:
    errors = [abs(predicted / measured - 1) for _, measured, predicted in rows]
    _, measured, predicted = max(rows)
    return CurveErrors(what, len(rows), statistics.median(errors), max(errors), measured, predicted)


# -- least squares -------------------------------------------------------------------------------------------


def _bent(
    fixed: np.ndarray, nbytes: np.ndarray, times: np.ndarray, grain: float | None = None
) -> tuple[list[float], float]:
    """Coefficients of the fixed columns, then per byte below and beyond the best knee; and the knee.

    One line if no bend is worth it: a bend has to take off a tenth of the loss.
    """
    line, least = _solve(np.column_stack([fixed, nbytes]), times, grain=grain)
    best, knee = [*line, line[-1]], 0.0
    sizes = np.unique(nbytes)
    least *= 0.9
    for at in sizes[_LEAST_PER_SIDE - 1 : len(sizes) - _LEAST_PER_SIDE + 1]:
        within = np.minimum(nbytes, at)
        found, loss = _solve(np.column_stack([fixed, within, nbytes - within]), times, grain=grain)
        if loss < least:
            best, knee, least = found, float(at), loss
    return best, knee


def _solve(
    columns: np.ndarray, times: np.ndarray, known: np.ndarray | float = 0.0, grain: float | None = None
) -> tuple[list[float], float]:
    """Coefficients from 0 up by which the columns and what is `known` make the times, and the loss.

    Args:
        grain: errors count relative to the measured time; with a grain relative to the fitted one and these seconds, so
            that times which differ for reasons that no column knows are met in their mean.
    """
    from scipy.optimize import nnls  # loading it takes longer than all else here, and plans do without

    unit = times if grain is None else times + grain
    tolerance = _TOLERANCE if grain is None else _SPREAD
    scale = np.linalg.norm(columns / unit[:, None], axis=0)
    scale[scale == 0] = 1.0
    columns, weights, found, off = columns / scale, np.ones(len(times)), np.zeros(columns.shape[1]), times
    for _ in range(_ROUNDS):
        each = weights / unit
        found, _ = nnls(columns * each[:, None], (times - known) * each)
        made = columns @ found + known
        unit = unit if grain is None else made + grain
        off = (made - times) / unit / tolerance
        weights = (1 + off**2) ** -0.25
    return (found / scale).tolist(), float(np.sum(np.sqrt(1 + off**2) - 1))


def _times(given: list[float]) -> np.ndarray:
    times = np.array(given, float)
    if not np.all((times > 0) & np.isfinite(times)):
        raise ValueError(f"measured seconds are finite and above 0, not {times.min():g} .. {times.max():g}")
    return times


def _grows_apart(flops: np.ndarray, nbytes: np.ndarray) -> bool:
    """Whether operations are no fixed number a byte, so that both can be told apart: contractions."""
    if len(flops) < _LEAST_PER_SIDE or not np.all(flops > 0):
        return False
    ratio = flops / nbytes
    return bool(ratio.max() > 2 * ratio.min() and ratio.max() > 4)


def _peaks(samples: Sequence[OperatorSample]) -> tuple[tuple[str, float], ...]:
    """The most operations a second that was seen in each dtype, of what works more than it moves."""
    rates: dict[str, float] = {}
    for one in samples:
        if one.flops > one.nbytes:
            rates[one.dtype] = max(rates.get(one.dtype, 0.0), one.flops / one.seconds)
    if "f32" not in rates:
        raise ValueError("no operator was measured that does operations in f32")
    return tuple(sorted(rates.items()))


def _bandwidth(samples: Sequence[OperatorSample]) -> float:
    """Bytes a second that operators with little work reach in the median, of the largest sample of each."""
    largest: dict[str, OperatorSample] = {}
    for one in samples:
        is_view = one.seconds < _LEAST_PER_BYTE * one.nbytes
        if not is_view and one.flops <= 2 * one.nbytes and one.nbytes >= largest.get(one.operator, one).nbytes:
            largest[one.operator] = one
    if not largest:
        raise ValueError("no operator was measured that moves more than it computes")
    return statistics.median(one.nbytes / one.seconds for one in largest.values())
