"""A plan as a module of torch, on ranks of torch.distributed: what `planned.to_torch()` returns.

    model = planned.to_torch(net)
    optimizer = model.optimizer()
    loss = model(input_ids=ids, labels=ids)     whole tensors in, on every rank
    loss.backward()
    optimizer.step()

Parameters are DTensors as the plan splits them, states of the optimizer as well, wherever the plan puts them; forward,
gradient and update are the program of the ranks. So gradients are never seen: `.grad` of parameters says that there are
some, and nothing reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autoshard.engines.placement import DevicePlacement
from autoshard.engines.torch_library import array
from autoshard.engines.torch_steps import StepRun, TorchSteps
from autoshard.exporters.torch_blocks import block_of, check_says, dtensor, replace_block, whole_of
from autoshard.exporters.torch_gradients import has_gradients, show_gradients
from autoshard.exporters.torch_optimizer import TorchOptimizer, updating
from autoshard.ir.graph import DATA
from autoshard.partition.program import Register
from autoshard.search.planned import PlannedData
from autoshard.trace.loss_scale import OptimizerState
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import PlanError, RuntimeSetupError, at
from autoshard.util.source import caller


class Shards(torch.nn.Module):
    """A module that holds tensors by names with dots."""

    def put(self, name: str, tensor: Any) -> None:
        """Hold a tensor by its name; what stands before dots are modules inside."""
        first, _, rest = name.partition(".")
        if not rest:
            kind = self.register_parameter if isinstance(tensor, torch.nn.Parameter) else self.register_buffer
            kind(first, tensor)
            return
        if first not in self._modules:
            self.add_module(first, Shards())
        held = self._modules[first]
        assert isinstance(held, Shards)
        held.put(rest, tensor)


class TorchModule(Shards):
    """A planned model, or step of training, on the rank that this process is.

    Args:
        planned: what `autoshard.plan` returned.
        module: the torch module that was imported: `state_dict` then has the names that its own has.
        compiled: whether operators between two collectives are compiled together, by `torch.compile`, when they are
            first run.
        device: what this rank computes on: "cpu", "cuda", or "auto", which is cuda where all ranks see a CUDA device.

    Raises:
        PlanError: an operator that the engine torch lacks, layouts that DTensors cannot say, or another module.
        RuntimeSetupError: another number of ranks than planned, or there is no such device.
    """

    def __init__(
        self,
        planned: PlannedData,
        module: torch.nn.Module | None = None,
        compiled: bool = False,
        device: str | DevicePlacement = "auto",
    ) -> None:
        super().__init__()
        graph, known = planned.graph, planned.traced.parameters
        self.planned, self.program = planned, planned.program
        self.sources: dict[int, Parameter] = {i: known[one] for i, one in enumerate(graph.inputs) if one in known}
        """For inputs of the program that no data are, what they were imported as."""
        self.trained = {into: out for out, into in graph.updates.items() if self._is_trained(into)}
        """Input of a trained parameter -> output with its new value."""
        self._data = {graph.inputs[i].name: i for i, role in enumerate(graph.roles) if role == DATA}
        self._returned = len(graph.outputs) - len(graph.updates)
        for register in (*self.program.inputs, *self.program.outputs[: self._returned]):
            check_says(register)
        makers = {updating(graph, out) for out in self.trained.values()}
        self.steps = TorchSteps(self.program, self._returned, makers, compiled, device)
        self.device = torch.device(self.steps.placement.device)
        """Where this rank computes, and where its parameters lie."""
        self.held: dict[int, Any] = {i: self._tensor(i, one) for i, one in self.sources.items()}
        """The DTensors of these inputs."""
        own = {one.name: i for i, one in self.sources.items() if not isinstance(one, OptimizerState)}
        changed = {*graph.updates.values()} - {*self.trained}
        self._changed = "" if module is None else next((name for name, i in own.items() if i in changed), "")
        """Something that a step of a module changes beside what is trained, such as the statistics of a batch norm."""
        self._named = own if module is None else _named(module, own, self.program)
        for name, i in self._named.items():
            self.put(name, self.held[i])
        if module is not None:
            self._put_rest(module)
        self._run: StepRun | None = None
        self._steps_done = 0
        self._anchor = torch.zeros((), device=self.device, requires_grad=True)
        self.register_load_state_dict_pre_hook(self._cut)

    @property
    def rank(self) -> int:
        return self.steps.rank

    def _is_trained(self, i: int) -> bool:
        return i in self.sources and self.sources[i].requires_grad

    def _tensor(self, i: int, parameter: Parameter) -> Any:
        """The present value of a parameter as a DTensor."""
        register = self.program.inputs[i]
        block = block_of(array(parameter.asnumpy()), register, self.rank).to(self.device)
        tensor = dtensor(block, register, self.rank)
        return torch.nn.Parameter(tensor) if parameter.requires_grad else tensor

    def _put_rest(self, module: torch.nn.Module) -> None:
        """Hold what the module has and the plan does not use, so that a state dict is whole."""
        for name, tensor in module.state_dict().items():
            if name not in self._named:
                self.put(name, tensor.detach().clone().to(self.device))

    # -- the step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for whole tensors, whole; of a step of training the loss, which has a gradient."""
        self._check_trains()
        run = self.steps.begin(self._blocks(args, kwargs))
        registers = self.program.outputs[: self._returned]
        whole = [self._whole(block, register) for block, register in zip(run.forward(), registers, strict=True)]
        if not self.trained:
            run.backward()
            self._keep(run.finish())
        elif torch.is_grad_enabled():
            whole[0] = _Loss.apply(whole[0], self._anchor, partial(self._backward, run, self._steps_done))
        return self.planned.traced.unpack(whole)

    def _whole(self, block: torch.Tensor, register: Register) -> torch.Tensor:
        """The whole tensor, put together where what is sent lies."""
        return whole_of(block.to(self.steps.placement.wire), register, self.rank).to(self.device)

    def _check_trains(self) -> None:
        """That it is not asked for what a module does in evaluation where that differs.

        Raises:
            RuntimeSetupError: it is a step of training that drops elements, or counts statistics of batches.
        """
        if self.trained and self._changed and not self.training:
            raise RuntimeSetupError(
                f"{self.program.name!r} was planned as a step of training, which changes {self._changed} and does the "
                f"same in eval(){at(caller(installed=False))}; plan the module in eval(), too, without an optimizer, "
                "and load whole_state_dict() into it"
            )

    def _backward(self, run: StepRun, begun: int) -> None:
        """Do what comes before the update, for a loss that was made after `begun` steps."""
        if run.done != "forward":
            raise RuntimeSetupError("backward() was called twice for one loss; each call of the model has one gradient")
        if begun != self._steps_done:
            raise RuntimeSetupError("parameters have been updated since this loss was made; call the model once more")
        trained = [self.held[i] for i in self.trained]
        if self._run is not None and has_gradients(trained):
            raise RuntimeSetupError(
                f"there are gradients of an earlier loss{at(caller(installed=False))}, which a planned step does not "
                "add to: give plan(..., micro_batches=N) and the model the whole batch, or drop the earlier ones by "
                "optimizer.zero_grad()"
            )
        run.backward()
        self._run = run
        show_gradients((self.program.inputs[i].name, self.held[i]) for i in self.trained)

    def update(self) -> None:
        """Do the update of the last step, whose gradient is there; a run that fails here leaves no values.

        Raises:
            RuntimeSetupError: there is no gradient, or another one than the plan's.
        """
        run, self._run = self._run, None
        trained = [self.held[i] for i in self.trained]
        if run is None or not has_gradients(trained):
            raise RuntimeSetupError(
                "there is no gradient to step by: call loss = model(...) and loss.backward() first, and leave .grad of "
                "all parameters as it is"
            )
        for one in trained:
            one.grad = None
        self._steps_done += 1
        for into in self.planned.graph.updates.values():
            replace_block(self.held[into], None, self.program.inputs[into], self.rank)
        self._keep(run.finish())

    def _keep(self, made: tuple[torch.Tensor, ...]) -> None:
        """Take new values up."""
        for out, into in self.planned.graph.updates.items():
            replace_block(self.held[into], made[out], self.program.inputs[into], self.rank)

    def _blocks(self, args: tuple, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        given = {**self.held, **self._given(args, kwargs)}
        blocks = (block_of(given[i], register, self.rank) for i, register in enumerate(self.program.inputs))
        return [block.to(self.device) for block in blocks]

    def _given(self, args: tuple, kwargs: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """The data inputs among arguments: by name where they have one, the others in order."""
        named = {self._data[name]: one for name, one in kwargs.items() if name in self._data}
        rest = pytree.tree_leaves((args, {name: one for name, one in kwargs.items() if name not in self._data}))
        tensors = [one for one in rest if isinstance(one, torch.Tensor | np.ndarray | np.generic)]
        free = [i for i in self._data.values() if i not in named]
        if len(tensors) != len(free):
            raise RuntimeSetupError(
                f"{self.program.name!r} takes {len(self._data)} tensors ({', '.join(self._data)}), but "
                f"{len(tensors) + len(named)} were given"
            )
        found = {**named, **dict(zip(free, tensors, strict=True))}
        return {i: one if isinstance(one, torch.Tensor) else array(np.asarray(one)) for i, one in found.items()}

    # -- the state

    def _cut(self, module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Let whole tensors be loaded: of each this rank's block is taken. DTensors have to lie as planned."""
        for name, i in self._named.items():
            given = state.get(prefix + name)
            if isinstance(given, torch.Tensor):
                register = self.program.inputs[i]
                block = block_of(given, register, self.rank).to(self.device)
                state[prefix + name] = dtensor(block, register, self.rank)

    def whole_state_dict(self) -> dict[str, torch.Tensor]:
        """What `state_dict` gives, in whole tensors on every rank; all ranks call it together."""
        whole = {i: self._whole_held(i) for i in dict.fromkeys(self._named.values())}
        return {
            name: whole[self._named[name]] if name in self._named else one for name, one in self.state_dict().items()
        }

    def _whole_held(self, i: int) -> torch.Tensor:
        register = self.program.inputs[i]
        return self._whole(block_of(self.held[i], register, self.rank), register)

    def optimizer(self) -> TorchOptimizer:
        """The optimizer that was planned, as one of torch.

        Raises:
            PlanError: there is none.
        """
        if not self.trained:
            raise PlanError(f"{self.program.name!r} is no step of training: it was imported without an optimizer")
        return TorchOptimizer(self)


class _Loss(torch.autograd.Function):
    """The loss, whose gradient is the rest of the program."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, anchor: torch.Tensor, rest: Callable[[], None]) -> torch.Tensor:  # type: ignore[override]
        ctx.rest = rest
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, None]:  # type: ignore[override]
        if not bool((grad == 1).all()):
            raise RuntimeSetupError(
                "the plan has the gradient of the sum of the loss itself; what is done to the loss before backward() "
                "belongs into the loss that the model was imported with"
            )
        ctx.rest()
        return None, None, None


def _named(module: torch.nn.Module, own: Mapping[str, int], program: Any) -> dict[str, int]:
    """Names of a module's state dict, and others of the plan, with the inputs that they stand for.

    Raises:
        PlanError: the module has none of the plan's tensors, or others by their names.
    """
    groups: dict[Any, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride())
        groups.setdefault(key, []).append(name)
    found: dict[str, int] = {}
    for (_, _, shape, _), names in groups.items():
        first = next((name for name in names if name in own), None)
        if first is not None:
            register: Register = program.inputs[own[first]]
            if tuple(shape) != register.true.shape:
                raise PlanError(f"the plan is for another module: its {first} is {register.true}, not {list(shape)}")
            found |= dict.fromkeys(names, own[first])
    if own and not found:
        raise PlanError(f"the plan is for another module than {type(module).__name__}, which has no {next(iter(own))}")
    order = [name for name in module.state_dict() if name in found]
    return {**{name: found[name] for name in order}, **own}
