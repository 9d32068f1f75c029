"""States of an optimizer of torch.optim as DTensors where a plan of a step of training puts them, ZeRO's among them.

    parallelize(net, planned)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    distribute_states(optimizer, net, planned)

What an update reads of another layout than its own is redistributed by DTensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from autoshard.exporters.dtensor import split_tensor
from autoshard.exporters.placements import module_plan
from autoshard.exporters.torch_optimizer import STATES
from autoshard.search.planned import PlannedData
from autoshard.trace.optim import State, StepCount
from autoshard.util.errors import PlanError


def distribute_states(optimizer: torch.optim.Optimizer, module: torch.nn.Module, planned: PlannedData) -> None:
    """Make the states of an optimizer of a parallelized module, zeros, as the plan's step of training has them.

    Raises:
        PlanError: the plan is no step of training with states, or one for another module.
    """
    own: dict[str, Any] = dict(module.named_parameters())
    states = [one for one in planned.traced.parameters.values() if isinstance(one, State)]
    missing = [one.of.name for one in states if not isinstance(own.get(one.of.name), DTensor)]
    if missing or not states:
        raise PlanError(
            f"distribute_states: {missing[0]} is no DTensor of {type(module).__name__}; parallelize that by the plan"
            if missing
            else "distribute_states: the plan has no states of an optimizer; give from_torch a loss and an optimizer"
        )
    specs = module_plan(planned.plan, ())
    layouts = {value.name: planned.plan.layouts[value] for value in planned.graph.inputs}
    counts = any(isinstance(one, StepCount) for one in planned.traced.parameters.values())
    for one in states:
        parameter = own[one.of.name]
        zeros = torch.zeros(parameter.shape, dtype=parameter.dtype)
        made = split_tensor(zeros, one.name, parameter.device_mesh, specs, layouts)
        optimizer.state[parameter][STATES.get(one.prefix, one.prefix)] = made
        if counts:
            optimizer.state[parameter]["step"] = torch.zeros(())
    for group in optimizer.param_groups:
        group["foreach"] = False  # with states in other layouts than parameters, DTensor takes them one by one
