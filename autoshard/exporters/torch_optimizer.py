"""The optimizer of a planned step of training as one of torch; its states lie where the plan puts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from autoshard.exporters.torch_blocks import block_of, replace_block
from autoshard.ir.graph import Graph, Node
from autoshard.partition.program import Program
from autoshard.search.planned import PlannedData
from autoshard.trace.loss_scale import OptimizerState
from autoshard.trace.optim import State, StepCount
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import RuntimeSetupError

_STEP = "step"
STATES = {"moment1": "exp_avg", "moment2": "exp_avg_sq", "moments": "momentum_buffer", "accum": "momentum_buffer"}
"""Names of states in torch.optim."""
_SETTINGS = {"learning_rate": "lr", "weight_decay": "weight_decay", "eps": "eps", "momentum": "momentum"}


class Trained(Protocol):
    """What an optimizer asks of a module whose step of training is planned (`torch_module.TorchModule`)."""

    planned: PlannedData
    program: Program
    sources: dict[int, Parameter]
    trained: dict[int, int]
    held: dict[int, Any]

    @property
    def rank(self) -> int: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def update(self) -> None: ...


class TorchOptimizer(torch.optim.Optimizer):
    """The update of a planned step: states are DTensors, named as in torch.optim; settings are those of the plan."""

    def __init__(self, model: Trained) -> None:
        self._model, self._settings = model, dict(_settings(model))
        groups: dict[tuple, list[Any]] = {}
        trained = {id(model.held[i]): settings for i, settings in self._settings.items()}
        for one in model.parameters():  # in torch's order, by which state dicts of optimizers number them
            if id(one) in trained:
                groups.setdefault(tuple(trained[id(one)].items()), []).append(one)
        super().__init__([{"params": those, **dict(key)} for key, those in groups.items()], {})
        self._places = dict(self._states())
        self._show()

    def _states(self) -> Iterator[tuple[tuple[int, str], int]]:
        """For each trained parameter and name of a state, which input of the program that is."""
        inputs = {id(one): i for i, one in self._model.sources.items()}
        for at, one in self._model.sources.items():
            if isinstance(one, State):
                yield (inputs[id(one.of)], STATES.get(one.prefix, one.prefix)), at
            elif isinstance(one, OptimizerState):  # one number for all
                yield from (((i, _STEP if isinstance(one, StepCount) else one.name), at) for i in self._settings)

    def _show(self) -> None:
        """Put states where torch has them; numbers of all as torch.optim has that of steps, as floats on each rank."""
        for (i, name), at in self._places.items():
            held, single = self._model.held[at], not isinstance(self._model.sources[at], State)
            self.state[self._model.held[i]][name] = held.full_tensor().to(torch.float32) if single else held

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update parameters and states by the gradient of the last loss.

        Raises:
            RuntimeSetupError: there is no gradient, or settings are no longer the plan's.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_settings()
        self._model.update()
        self._show()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up states: DTensors that lie as the plan says, or whole tensors."""
        super().load_state_dict(state_dict)
        for (i, name), at in self._places.items():
            register, rank = self._model.program.inputs[at], self._model.rank
            given = self.state[self._model.held[i]][name]
            replace_block(self._model.held[at], block_of(given, register, rank), register, rank)
        self._show()

    def _check_settings(self) -> None:
        known = {id(self._model.held[i]): settings for i, settings in self._settings.items()}
        for group in self.param_groups:
            for name, value in known[id(group["params"][0])].items():
                if group[name] != value:
                    raise RuntimeSetupError(
                        f"{name} is {group[name]!r}, but the plan's step has {value!r}; plan with a schedule (a "
                        "sequence, or a function of the step) as the optimizer's learning rate"
                    )


def _settings(model: Trained) -> Iterator[tuple[int, dict[str, Any]]]:
    """For each trained parameter the settings of its update."""
    graph = model.planned.graph
    for into, out in model.trained.items():
        attrs = updating(graph, out).attrs
        found = {name: attrs[key] for key, name in _SETTINGS.items() if key in attrs}
        yield into, {**found, **({"betas": (attrs["beta1"], attrs["beta2"])} if "beta1" in attrs else {})}


def updating(graph: Graph, out: int) -> Node:
    """The node that makes the new value of an output that is updated, before what may leave the old one."""
    node = graph.producers[graph.outputs[out]][0]
    return graph.producers[node.operands[1]][0] if node.op.name == "Select" else node
