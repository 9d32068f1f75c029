"""The memory and the timeline of a step as pictures, by matplotlib (the extra `viz`): SVG, PNG or PDF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.util.errors import PlanError
from autoshard.util.files import write_atomically

FORMATS = (".svg", ".png", ".pdf")
_LANES = {"compute": "#4c78a8"}
_TALK, _EXPOSED = "#f2b377", "#d1495b"
_KINDS = ("#4c78a8", "#72b7b2", "#e8b14f", "#b279a2", "#54a24b", "#9d755d", "#eeca3b", "#bab0ac")
Data = Mapping[str, Any]


Point = tuple[str, float, float, bool]
"""A plan: its name, seconds of a step, bytes of memory at its peak, and whether they fit."""


def plot(data: Data, what: str, path: str | Path) -> Path:
    """Write a picture of a plan, whole or not at all; the path.

    Args:
        data: the plan as `autoshard plan --json --all` tells it.
        what: "timeline", when what runs in a step, or "memory", what lies in memory meanwhile.
        path: ends in .svg, .png or .pdf.

    Raises:
        PlanError: no such picture or format, figures are missing, or matplotlib is; the file cannot be written.
    """
    check_plot(what, path)
    title = f"{data['graph']} on mesh {data['mesh']}, by {data['search']}"
    return _drawn(lambda axes: PLOTS[what](data, axes), title, path)


def plot_contenders(points: Sequence[Point], bound: float, path: str | Path) -> Path:
    """Write a picture of plans beside each other, time against memory; the path.

    Args:
        bound: seconds below which no plan is known to be possible, 0 if nothing is proven.

    Raises:
        PlanError: no plan to draw, a file of another kind, matplotlib is missing, or the file cannot be written.
    """
    _check_format(path)
    if not points:
        raise PlanError("there is no plan to draw: none of the modes found one")
    return _drawn(partial(_contenders, points, bound), "plans: seconds of a step against memory", path)


def _drawn(draw: Callable[[Any], None], title: str, path: str | Path) -> Path:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise PlanError("pictures of a step need matplotlib: pip install 'autoshard[viz]'") from None
    with rc_context({"svg.hashsalt": "autoshard", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        draw(figure.subplots())
        figure.suptitle(title, fontsize=10)
        made = BytesIO()
        suffix = Path(path).suffix[1:]
        figure.savefig(made, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
    return write_atomically(path, made.getvalue(), PlanError)


def check_plot(what: str, path: str | Path) -> None:
    """Whether there is such a picture.

    Raises:
        PlanError: no such picture, or a file of another kind.
    """
    if what not in PLOTS:
        raise PlanError(f"there is no picture {what!r} of a plan; there are {', '.join(PLOTS)}")
    _check_format(path)


def _check_format(path: str | Path) -> None:
    if Path(path).suffix not in FORMATS:
        raise PlanError(f"cannot write a picture to {path}: its name must end in {', '.join(FORMATS)}")


def _timeline(data: Data, axes: Any) -> None:
    """A lane for computing and one for each mesh axis; what no computing hides is marked."""
    rows = _of(data, "timeline")
    scale, unit = _scaled(max((one["start"] + one["seconds"] for one in rows), default=0.0))
    lanes = list(dict.fromkeys(one["lane"] for one in rows))
    for place, lane in enumerate(lanes):
        mine = [one for one in rows if one["lane"] == lane]
        spans = [(one["start"] * scale, one["seconds"] * scale) for one in mine]
        axes.broken_barh(
            spans, (place - 0.4, 0.8), facecolors=_LANES.get(lane, _TALK), edgecolor="white", linewidth=0.3
        )
        bare = [(span[0], one["exposed"] * scale) for one, span in zip(mine, spans, strict=True) if one["exposed"]]
        axes.broken_barh(bare, (place - 0.4, 0.8), facecolors=_EXPOSED, edgecolor="white", hatch="///", linewidth=0.3)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    cost = data["cost"]
    exposed = (cost["seconds"] - cost["compute_seconds"]) * scale
    axes.set_xlabel(f"{unit} since the step began; {exposed:.3g} {unit} of communication (hatched) hide behind nothing")
    axes.spines[["top", "right"]].set_visible(False)


def _memory(data: Data, axes: Any) -> None:
    """What lies in a device's memory, by kind, over the instructions of a step; the peak is marked."""
    memory = _of(data["cost"], "memory")
    total, moments = memory["timeline"], len(memory["timeline"])
    kinds: dict[str, np.ndarray] = {}
    for one in memory["everything"]:
        lies = kinds.setdefault(one["kind"], np.zeros(moments))
        lies[one["first"] : one["last"] + 1] += one["bytes"]
    order = sorted(kinds, key=lambda kind: -kinds[kind].sum())
    scale, unit = _sized(max(total, default=0))
    colours = [_KINDS[i % len(_KINDS)] for i in range(len(order))]
    stacked = [kinds[kind] / scale for kind in order]
    axes.stackplot(range(moments), *stacked, labels=order, colors=colours, step="mid", linewidth=0)
    peak = memory["peak_moment"]
    axes.axvline(peak, color=_EXPOSED, linewidth=0.8)
    label = f"{total[peak] / scale:.3g} {unit} at {memory['peak_at']}"
    axes.annotate(
        _short(label), (peak, total[peak] / scale), xytext=(4, 4), textcoords="offset points", color=_EXPOSED,
        ha="right" if peak > moments / 2 else "left",
    )  # fmt: skip
    axes.set_xlim(0, max(1, moments - 1))
    axes.set_ylim(0, max(total, default=1) / scale * 1.15)
    axes.set_xlabel("instruction")
    axes.set_ylabel(f"{unit} on a device")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _contenders(points: Sequence[Point], bound: float, axes: Any) -> None:
    """A point per plan; a line at what is proven."""
    scale, unit = _scaled(max(seconds for _, seconds, _, _ in points))
    size, of_size = _sized(max(nbytes for _, _, nbytes, _ in points))
    wide, high = max(one[1] for one in points) or 1.0, max(one[2] for one in points) or 1.0
    label: list[tuple[float, float]] = []
    for name, seconds, nbytes, fits in sorted(points, key=lambda one: (one[1], one[2], one[0])):
        at = seconds * scale, nbytes / size
        axes.plot(*at, "o" if fits else "x", color=_LANES["compute"] if fits else _EXPOSED)
        # Names of plans that lie together stand above each other.
        near = sum(abs(seconds - x) < 0.15 * wide and abs(nbytes - y) < 0.06 * high for x, y in label)
        axes.annotate(name, at, xytext=(6, 4 + 11 * near), textcoords="offset points")
        label.append((seconds, nbytes))
    if bound > 0:
        axes.axvline(bound * scale, color=_EXPOSED, linewidth=0.8, linestyle="--")
        axes.annotate("no plan is below", (bound * scale, 0), xytext=(4, 4), textcoords="offset points", color=_EXPOSED)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.15, y=0.15)
    axes.set_xlabel(f"{unit} a step")
    axes.set_ylabel(f"{of_size} on a device at the peak")
    axes.spines[["top", "right"]].set_visible(False)


PLOTS: dict[str, Callable[[Data, Any], None]] = {"timeline": _timeline, "memory": _memory}


def _of(data: Data, name: str) -> Any:
    found = data.get(name)
    if not found:
        raise PlanError(f"the plan has no {name} to draw; `autoshard plan TARGET --json --all` tells it")
    return found


def _scaled(seconds: float) -> tuple[float, str]:
    """By what to multiply seconds that are at most so many, and the unit that they are then in."""
    return next(((scale, unit) for scale, unit in ((1.0, "s"), (1e3, "ms")) if seconds * scale >= 1), (1e6, "us"))


def _sized(nbytes: float) -> tuple[float, str]:
    """By what to divide bytes, and the unit that they are then in."""
    units: Sequence[tuple[float, str]] = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
    return next(((scale, unit) for scale, unit in units if nbytes >= scale), (1.0, "B"))


def _short(text: str) -> str:
    return text if len(text) <= 70 else f"{text[:69]}..."
