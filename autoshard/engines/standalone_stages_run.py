"""Exported stages on torch, as often as told: whole inputs in, whole outputs out.

This file needs numpy and torch, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from autoshard.engines.grid import Grid
from autoshard.engines.standalone import arguments_of, arrays_of, finished
from autoshard.engines.standalone_stages import StageCode, StagesPlan, StepOutput, actions_of
from autoshard.engines.standalone_stages_torch import StageGroup, StageStep
from autoshard.engines.standalone_torch import on_host, start
from autoshard.engines.torch_collectives import TorchCollectives, TorchControl


def run_steps(
    plan: StagesPlan, schedule: Path, given: Mapping[str, np.ndarray], steps: int = 1
) -> dict[str, np.ndarray]:
    """Whole inputs in, whole outputs of the last step out, on every rank.

    Args:
        schedule: the file that says who does what when.
    """
    start(plan.world, "cpu")
    group = StageGroup(plan)
    actions = actions_of(schedule, tuple(group.own))
    names = [one.name for one in plan.inputs]
    arrays = dict(zip(names, arrays_of(plan.inputs, given), strict=True))
    found: dict[str, np.ndarray] = {}
    with torch.no_grad():
        for number in range(steps):
            step = StageStep(group, {**arrays, **from_data(plan, arrays)})
            step.run(actions)
            last = number == steps - 1
            for i, of in enumerate(plan.outputs):
                into = plan.updates.get(i)
                name = None if into is None else names[into]
                if name is not None and _replaced(step, of, name) and not last:
                    continue
                whole = step.result(of)
                found[of.value.name] = whole
                if name is not None:
                    arrays[name] = whole
    return found


def _replaced(step: StageStep, of: StepOutput, name: str) -> bool:
    """Whether an input's blocks are replaced where they are; else, and where others read it, it goes whole."""
    readers = [
        (stage.number, one)
        for stage in step.plan.stages
        for piece in stage.pieces.values()
        for one in piece.inputs
        if one.route is None and name == (one.value.name if one.rows is None else one.rows[0])
    ]
    for key in [key for key in step.group.blocks if key[1].name == name]:
        del step.group.blocks[key]
    if of.source is None or of.rows is not None or of.source[1][0] != "U":
        return False
    stage, kind = of.source
    made = step.plan.stages[stage].pieces[kind].outputs[of.output].value
    same = replace(made, name=name)
    if any(number != stage or one.rows is not None or one.value != same for number, one in readers):
        return False
    if stage in step.group.own:
        step.group.blocks[stage, same] = step.made[of.source, of.output]
    return True


def from_data(plan: StagesPlan, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What follows from data alone."""
    return {} if plan.from_data is None else run_whole(plan.from_data, arrays)


def run_whole(piece: StageCode, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a piece for one rank makes of whole arrays, by name."""
    ends = [one.value for one in piece.inputs]
    given = [torch.tensor(one.pad(np.asarray(arrays[one.name]))).to(getattr(torch, one.dtype)) for one in ends]
    made = piece.run(TorchControl(), TorchCollectives(Grid((), (0,)), 0), *given)
    return {of.value.name: on_host(x, of.value) for of, x in zip(piece.outputs, made, strict=True)}


def main_stages(plan: StagesPlan, schedule: Path, text: str) -> None:
    """Run from the command line."""
    told = arguments_of(text)
    given = dict(np.load(told.inputs)) if told.inputs else {}
    found = run_steps(plan, schedule, given, told.steps)
    if dist.get_rank() == 0:
        finished([one.value for one in plan.outputs], found, told.outputs)
    dist.destroy_process_group()
