"""The memory limit of a device: read from text, and held against a plan's memory by the model (`memory.py`)."""

from __future__ import annotations

from typing import Any

from autoshard.cost.memory import HeldBytes, MemoryUse, memory_of, peak_memory
from autoshard.plan.plan import Plan
from autoshard.util.errors import MemoryLimitError, PlanError
from costmodel import format_bytes, parse_bytes

MEMORY = "memory"
"""The name of the limit among a problem's options."""

_BIGGEST = 5


def read_limit(given: Any, what: str = "memory") -> int | None:
    """Bytes from "80 GiB", "80GB" or a whole number; None stands for no limit.

    Raises:
        PlanError: anything else.
    """
    if given is None:
        return None
    try:
        return parse_bytes(given)
    except ValueError as error:
        raise PlanError(f"{what}: {error}") from None


def check_limit(plan: Plan, limit: int | None) -> None:
    """Refuse a plan that needs more memory than there is.

    Raises:
        MemoryLimitError: names the step that needs most, and the largest tensors in memory then.
    """
    if limit is None or peak_memory(plan) <= limit:
        return
    use = memory_of(plan)
    raise MemoryLimitError(_told(plan, use, limit), needed=use.peak, limit=limit)


def _told(plan: Plan, use: MemoryUse, limit: int) -> str:
    over, held = use.peak - limit, use.at(use.peak_moment)
    shown = ", ".join(map(_shown, held[:_BIGGEST]))
    rest = f" and {len(held) - _BIGGEST} more" if len(held) > _BIGGEST else ""
    advice = "" if plan.search == "optimal" else "; search='optimal' looks for the fastest plan that keeps the limit"
    return (
        f"the plan of {plan.search!r} for {plan.graph.name!r} is over the memory limit of {_exact(limit)} by "
        f"{_exact(over)}: at {use.peak_at} a device holds {_exact(use.peak)} ({shown}{rest}){advice}"
    )


def _shown(one: HeldBytes) -> str:
    return f"{one.kind} {one.what} {format_bytes(one.nbytes)}"


def _exact(nbytes: int) -> str:
    """Rounded, and to the byte: limits are kept exactly."""
    return f"{format_bytes(nbytes)} ({nbytes} B)"
