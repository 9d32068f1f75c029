"""Checks of single settings: each takes what is being said in an error and the value, and gives the value to keep."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from autoshard.layout.mesh import Mesh
from autoshard.pipeline.schedules import schedule_kind
from autoshard.search import search_modes
from autoshard.search.memory_limit import read_limit
from autoshard.util.checks import positive
from autoshard.util.errors import AutoshardError, ContextError
from autoshard.util.near import did_you_mean
from costmodel import load, presets
from costmodel.store import CALIBRATED, is_saved


def one_of(*choices: object) -> Callable[[str, Any], Any]:
    def check(what: str, value: Any) -> Any:
        if not any(value is choice or value == choice and type(value) is type(choice) for choice in choices):
            meant = did_you_mean(value, [one for one in choices if isinstance(one, str)])
            raise ContextError(f"{what} is {value!r}{meant}; it can be {', '.join(map(repr, choices))}")
        return value

    return check


def check_save_graphs(what: str, value: Any) -> int:
    if isinstance(value, bool):
        # MindSpore's older spelling; True means the level that its users look at.
        return 2 if value else 0
    return one_of(0, 1, 2, 3)(what, value)


def check_path(what: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ContextError(f"{what} is {value!r}; it must be the path of a folder")
    return os.fspath(value)


def check_memory(what: str, value: Any) -> int | None:
    try:
        return read_limit(value, what)
    except AutoshardError as error:
        raise ContextError(str(error)) from None


def check_search(what: str, value: Any) -> str:
    return one_of(*search_modes())(what, value)


def check_hardware(what: str, value: Any) -> str:
    if not (isinstance(value, str) and is_saved(value)):
        return one_of(*sorted(presets()), CALIBRATED)(what, value)
    try:
        load(value)
    except ValueError as error:
        raise ContextError(f"{what} is {value!r}: {error}") from None
    return value


def check_count(what: str, value: Any) -> int | None:
    count = positive(value)
    if value is not None and count is None:
        raise ContextError(f"{what} is {value!r}; it must be a whole number of at least 1")
    return count


def check_whole_number(what: str, value: Any) -> int:
    count = positive(value)
    if count is None:
        raise ContextError(f"{what} is {value!r}; it must be a whole number of at least 1")
    return count


def check_mesh(what: str, value: Any) -> Mesh | None:
    if value is None or isinstance(value, Mesh):
        return value
    if not isinstance(value, str):
        raise ContextError(f"{what} is {value!r}; it must be a Mesh or its text, such as 'dp=2 tp=4'")
    try:
        return Mesh.parse(value)
    except AutoshardError as error:
        raise ContextError(f"{what} is {value!r}: {error}") from None


def check_strategy_file(what: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ContextError(f"{what} is {value!r}; it must be the path of a file of strategies")
    return os.fspath(value)


def check_config(*known: str) -> Callable[[str, Any], Any]:
    def check(what: str, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping) or not set(value) <= set(known):
            raise ContextError(f"{what} is {value!r}; it is a dict with {', '.join(known)}")
        return FrozenDict(value)

    return check


class FrozenDict(dict):
    """A dict that is a value: settings are compared and kept as keys."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted((name, repr(value)) for name, value in self.items())))


def check_optimizer_config(what: str, value: Any) -> Any:
    found = check_config(
        "gradient_accumulation_shard", "parallel_optimizer_threshold", "optimizer_weight_shard_size", "optimizer_level"
    )(what, value)
    if found is None:
        return None
    threshold, size = found.get("parallel_optimizer_threshold", 64), found.get("optimizer_weight_shard_size", -1)
    if found.get("gradient_accumulation_shard") or found.get("optimizer_level", "level1") not in ("level1", "level3"):
        raise ContextError(
            f"{what} is {value!r}: gradient_accumulation_shard and level2 are not offered; leave them out"
        )
    if (
        isinstance(threshold, bool)
        or not isinstance(threshold, int)
        or threshold < 0
        or size != -1
        and positive(size) is None
    ):
        raise ContextError(
            f"{what} is {value!r}: parallel_optimizer_threshold is KB, at least 0, and optimizer_weight_shard_size -1 "
            "or at least 1"
        )
    return found


SCHEDULERS = {"1f1b": "interleaved_1f1b", "gpipe": "looped_bfs", "zero_bubble_v": "zbv"}
"""MindSpore's schedulers that are offered, and the schedule of each where ranks run several segments."""
_REFUSED_SCHEDULERS = ("seqpipe", "seqvpp", "seqsmartvpp")


def check_pipeline_config(what: str, value: Any) -> Any:
    found = check_config("pipeline_interleave", "pipeline_scheduler")(what, value)
    if found is None:
        return None
    name = found.get("pipeline_scheduler", "1f1b")
    one_of(True, False)(f"{what}: pipeline_interleave", found.get("pipeline_interleave", False))
    if name in _REFUSED_SCHEDULERS:
        raise ContextError(
            f"{what}: pipeline_scheduler {name!r} cuts sequences into parts, which is not offered; it can be "
            f"{', '.join(map(repr, SCHEDULERS))}"
        )
    try:
        schedule_kind(name if isinstance(name, str) else repr(name))
    except AutoshardError as error:
        raise ContextError(f"{what}: pipeline_scheduler is {name!r}: {error}") from None
    return found


def check_fusion(what: str, value: Any) -> Any:
    found = check_config("openstate", "allreduce", "allgather", "reducescatter")(what, value)
    for name, one in (found or {}).items():
        if name != "openstate" and (
            not isinstance(one, Mapping) or one.get("mode") != "auto" or one.get("config") is not None
        ):
            raise ContextError(
                f"{what}: {name} is {one!r}; only {{'mode': 'auto', 'config': None}} is offered: collectives are "
                "joined where that is faster by the price of the hardware"
            )
    return found
