"""Exported stages on torch, as often as told: whole inputs in, whole outputs out.

This file needs numpy and torch, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from autoshard.engines.standalone import arrays_of
from autoshard.engines.standalone_stages import StandaloneStages, ValueSource, orders_of
from autoshard.engines.standalone_stages_group import StageGroup, run_whole
from autoshard.engines.standalone_stages_torch import StageStep
from autoshard.engines.standalone_torch import commanded, start


def run_steps(
    plan: StandaloneStages, schedule: Path, given: Mapping[str, np.ndarray], steps: int = 1, device: str = "auto"
) -> dict[str, np.ndarray]:
    """Whole inputs in, whole outputs of the last step out, on every rank.

    Args:
        schedule: the file that says who does what when.
    """
    device, wire = start(plan.world, device)
    plan = replace(plan, orders=orders_of(schedule))
    group = StageGroup(plan, device, wire)
    names = [one.name for one in plan.inputs]
    arrays = dict(zip(names, arrays_of(plan.inputs, given), strict=True))
    found: dict[str, np.ndarray] = {}
    with torch.no_grad():
        for number in range(steps):
            step = StageStep(group, {**arrays, **run_whole(plan.prologue, arrays)})
            step.run()
            last = number == steps - 1
            for i, (of, source) in enumerate(zip(plan.outputs, plan.results, strict=True)):
                into = plan.updates.get(i)
                name = None if into is None else names[into]
                if name is not None and _replaced(step, source, name) and not last:
                    continue
                whole = step.result(of, source)
                found[of.name] = whole
                if name is not None:
                    arrays[name] = whole
    return found


def _replaced(step: StageStep, source: ValueSource, name: str) -> bool:
    """Whether an input's blocks are replaced where they are; else, and where others read it, it goes whole."""
    plan, blocks = step.plan, step.group.blocks
    ends = ((piece.stage, *end) for piece in plan.pieces for end in piece.ends)
    readers = [(stage, value, of.kind) for stage, value, of in ends if of.kind in ("given", "rows") and of.of == name]
    for key in [key for key in blocks if key[1].name == name]:
        del blocks[key]
    place, i = plan.makers[source.of] if source.kind == "made" else ((-1, ""), 0)
    if not place[1].startswith("U"):
        return False
    same = replace(plan.by_place[place].outputs[i], name=name)
    if any(reader != (place[0], same, "given") for reader in readers):
        return False
    if place[0] in step.group.own:
        blocks[place[0], same] = step.made[place, i]
    return True


def main_stages(plan: StandaloneStages, schedule: Path, text: str) -> None:
    """Run from the command line."""
    commanded(plan.outputs, text, lambda given, steps, device: run_steps(plan, schedule, given, steps, device))
