"""`parallelize`: a torch module split as a plan says, by PyTorch's own DTensor on a DeviceMesh.

Parameters become DTensors with the plan's placements; where the plan knows how a module's inputs and outputs lie, hooks
redistribute them. Between these places DTensor's own rules decide; where it has no rule, operands are gathered.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.placement_types import _MaskPartial, _StridedShard
from torch.utils import _pytree as pytree

from autoshard.exporters.dtensor_blocks import gathered_call, some_empty
from autoshard.exporters.dtensor_elements import GATHERED
from autoshard.exporters.dtensor_local import LOCAL
from autoshard.exporters.dtensor_slices import assign
from autoshard.exporters.placements import PARTIAL, SHARD, AxisPlacement, Border, ModulePlan, Placements, module_plan
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Plan
from autoshard.trace.loss_scale import LOSS_SCALE
from autoshard.util.errors import PlanError, RuntimeSetupError

# What DTensor raises where it has no rule, or one that refuses the placements.
_REFUSALS = (RuntimeError, NotImplementedError, ValueError, AssertionError, IndexError, TypeError, KeyError)
# What reading and setting attributes of tensors is called.
_ATTRIBUTES = ("__get__", "__set__")
# What a program asks of a tensor's numbers.
_NUMBERS = ("__bool__", "__int__", "__float__", "__complex__", "__index__", "item", "tolist", "is_nonzero")
# DTensor's names for reductions where they are not ours.
_REDUCTIONS = {"prod": "product"}


def parallelize(
    module: torch.nn.Module, plan: Any, mesh: DeviceMesh | None = None, *, gather_outputs: bool = True
) -> torch.nn.Module:
    """Split a module as a plan says; torch.distributed is running, and every rank calls this alike.

        parallelize(net, planned)
        logits = net(input_ids=ids).logits      # plain tensors in, the whole batch on every rank; plain tensors out

    The module itself is changed: its parameters are DTensors afterwards, and so are their gradients. Each rank keeps
    only its blocks. What it draws, as dropout does, is of the whole tensor: seed torch alike on all ranks.
    `module.gathered` counts the functions for which DTensor has no rule, by name: what they take was
    gathered first.

    Args:
        plan: a Plan, or what `autoshard.plan` returned, for what `from_torch` made of this module; of a step of
            training the forward pass counts (`dtensor_states.distribute_states` has the optimizer's states).
        mesh: a DeviceMesh as `device_mesh` makes it of the plan; by default that is made.
        gather_outputs: return whole plain tensors; else DTensors that lie as the plan leaves the outputs.

    Raises:
        PlanError: no plan, or one for another module.
        RuntimeSetupError: there is another number of ranks than the plan's.
    """
    plan = getattr(plan, "plan", plan)
    if not isinstance(plan, Plan):
        raise PlanError(
            f"parallelize takes a Plan, or what autoshard.plan returned, not {type(plan).__name__}; a saved plan is "
            "read by autoshard.plan(model, mesh, search='plan.json')"
        )
    specs = module_plan(plan, tuple(path for path, _ in module.named_modules() if path))
    mesh = device_mesh(plan) if mesh is None else mesh
    layouts = {value.name: plan.layouts[value] for value in plan.graph.inputs if value.name in specs.tensors}
    _distribute(module, mesh, specs, layouts)
    for path, inner in module.named_modules():
        if path in specs.entering:
            entering, leaving = specs.entering[path], specs.leaving[path]
            inner.register_forward_pre_hook(functools.partial(_enter, mesh, entering), with_kwargs=True)
            inner.register_forward_hook(functools.partial(_leave, mesh, leaving))
    _wrap(module, mesh, specs, gather_outputs)
    return module


def device_mesh(plan: Any, device_type: str = "cpu") -> DeviceMesh:
    """The DeviceMesh of a plan: its mesh, with an axis for each piece that layouts use.

    Raises:
        RuntimeSetupError: torch.distributed is not running, or with another number of ranks.
    """
    from autoshard.exporters.pieces import pieces_of

    pieces = pieces_of(getattr(plan, "plan", plan))
    running = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 0
    if running != pieces.mesh.devices:
        raise RuntimeSetupError(
            f"the plan is for {pieces.mesh.devices} ranks (mesh '{pieces.mesh}'), but torch.distributed "
            + (f"has {running}" if running else "is not initialized; call torch.distributed.init_process_group")
        )
    return DeviceMesh(device_type, torch.from_numpy(pieces.ranks.copy()), mesh_dim_names=pieces.names)


def torch_placements(placements: Placements) -> list[Any]:
    """Placements as DTensor's own objects."""
    return list(map(_placement, placements))


def _placement(one: AxisPlacement) -> Any:
    if one.kind == SHARD:
        return Shard(one.dim) if one.inside == 1 else _StridedShard(one.dim, split_factor=one.inside)
    return Partial(_REDUCTIONS.get(one.reduction, one.reduction)) if one.kind == PARTIAL else Replicate()


# -- parameters


def _distribute(module: torch.nn.Module, mesh: DeviceMesh, specs: ModulePlan, layouts: Mapping[str, Layout]) -> None:
    """Put DTensors in the place of parameters and of buffers that the plan knows; shared ones stay shared."""
    made: dict[int, Any] = {}
    known: set[str] = set()
    for path, inner in module.named_modules():
        for kind in (inner._parameters, inner._buffers):
            for own, tensor in kind.items():
                name = f"{path}.{own}" if path else own
                if tensor is None or (kind is inner._buffers and name not in specs.tensors and id(tensor) not in made):
                    continue
                known.add(name)
                if id(tensor) not in made:
                    made[id(tensor)] = tensor, split_tensor(tensor, name, mesh, specs, layouts)
                kind[own] = made[id(tensor)][1]
    missing = [name for name in specs.tensors if name not in known and not _is_state(name, known)]
    if missing:
        raise PlanError(
            f"the plan is for another module than {type(module).__name__}, which has no {', '.join(missing[:3])}"
        )


def _is_state(name: str, known: set[str]) -> bool:
    """Whether a tensor of the plan is none of the module's: a state of an optimizer or of a loss scale, or a number of
    steps or uses."""
    counted = name in ("dropout.counter", "global_step") or name.startswith(f"{LOSS_SCALE}.")
    return counted or name.partition(".")[2] in known


def split_tensor(
    tensor: torch.Tensor, name: str, mesh: DeviceMesh, specs: ModulePlan, layouts: Mapping[str, Layout]
) -> torch.Tensor:
    """A whole tensor as the plan splits that of a name; a Parameter stays one.

    Raises:
        PlanError: the plan has another number of dims for it.
    """
    placements = torch_placements(specs.tensors[name]) if name in specs.tensors else [Replicate()] * mesh.ndim
    shape, data = tensor.shape, tensor.detach()
    layout = layouts.get(name)
    if layout is not None and layout.rank != len(shape):
        raise PlanError(
            f"the plan is for another module: it splits {name} as [{layout}], which has shape {tuple(shape)}"
        )
    if layout is not None and layout.divides(shape):
        block = data[layout.block(mesh.get_rank(), shape)].clone()
        split = DTensor.from_local(block, mesh, placements, run_check=False, shape=shape, stride=_strides(shape))
    else:
        split = distribute_tensor(data, mesh, placements, src_data_rank=None)
    return torch.nn.Parameter(split, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else split


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


# -- redistributions at the borders of modules


def _enter(mesh: DeviceMesh, border: Border, module: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return pytree.tree_map(functools.partial(_placed, mesh, border), (args, kwargs))


def _leave(mesh: DeviceMesh, border: Border, module: Any, args: tuple, output: Any) -> Any:
    return pytree.tree_map(functools.partial(_placed, mesh, border), output)


def _placed(mesh: DeviceMesh, border: Border, one: Any) -> Any:
    """A tensor as the border has it. Terms of a sum stay what they are: DTensor alone knows whether it has them."""
    if not isinstance(one, DTensor):
        return one
    wanted = border.wanted(tuple(one.shape))
    if wanted is None or any(placement.kind == PARTIAL for placement in wanted):
        return one
    # DTensor cannot change a tensor to a split inside of another: that axis stays whole.
    target = [Replicate() if placement.inside > 1 else _placement(placement) for placement in wanted]
    return one if tuple(target) == tuple(one.placements) else one.redistribute(mesh, target)


# -- the module as a whole


def _wrap(module: torch.nn.Module, mesh: DeviceMesh, specs: ModulePlan, gather: bool) -> None:
    """Let the module take plain tensors, and run with DTensor's gaps filled."""
    inner = module.forward
    mode = _Filled(mesh)

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [i for i, one in enumerate(leaves) if isinstance(one, torch.Tensor)]
        if len(tensors) != len(specs.inputs):
            known = ", ".join(name for name, _, _ in specs.inputs)
            raise PlanError(f"the plan is for {len(specs.inputs)} tensors ({known}), but {len(tensors)} were given")
        for position, (i, (name, shape, of)) in enumerate(zip(tensors, _by_name(kwargs, specs.inputs), strict=True)):
            if tuple(leaves[i].shape) != shape:
                raise PlanError(
                    f"the plan is for {name} (input {position}) of shape {shape}, but it has {tuple(leaves[i].shape)}"
                )
            whole = leaves[i] if isinstance(leaves[i], DTensor) else mode.whole(leaves[i])
            leaves[i] = whole.redistribute(mesh, torch_placements(of))
        with implicit_replication(), mode:
            own, named = pytree.tree_unflatten(leaves, structure)
            found, form = pytree.tree_flatten(inner(*own, **named))
        return pytree.tree_unflatten(_returned(found, specs, mesh, gather), form)

    module.forward = forward  # type: ignore[method-assign]
    module.gathered = mode.gathered  # type: ignore[assignment]


def _by_name(kwargs: Mapping[str, Any], inputs: Sequence[tuple]) -> list[tuple]:
    """The plan's inputs in the order in which they are given: those given by name behind the others."""
    named = {entry[0]: entry for entry in inputs}
    given = [named[name] for name, one in kwargs.items() if isinstance(one, torch.Tensor) and name in named]
    return [*(entry for entry in inputs if entry not in given), *given]


def _returned(found: list[Any], specs: ModulePlan, mesh: DeviceMesh, gather: bool) -> list[Any]:
    """Outputs whole, or as the plan leaves them."""
    if gather or len(specs.outputs) != sum(isinstance(one, DTensor) for one in found):
        return [one.full_tensor() if isinstance(one, DTensor) else one for one in found]
    wanted = iter(specs.outputs)
    return [one.redistribute(mesh, _final(next(wanted))) if isinstance(one, DTensor) else one for one in found]


def _final(placements: Placements) -> list[Any]:
    return [Replicate() if one.kind == PARTIAL or one.inside > 1 else _placement(one) for one in placements]


def _is_split(one: Any) -> bool:
    return isinstance(one, DTensor) and not all(isinstance(each, Replicate) for each in one.placements)


class _Filled(torch.overrides.TorchFunctionMode):
    """Runs functions that DTensor refuses, or has wrong, another way: on the blocks, or on what is gathered."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.gathered: Counter[str] = Counter()

    def whole(self, tensor: torch.Tensor) -> DTensor:
        """A plain tensor, the same on all ranks, as a DTensor."""
        return DTensor.from_local(tensor, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)

    def _lifted(self, one: Any) -> Any:
        return self.whole(one) if isinstance(one, torch.Tensor) and not isinstance(one, DTensor) else one

    def _filled(self, one: Any) -> Any:
        """A tensor of which some rank would have nothing whole: a function that refuses an empty block would do so on
        that rank alone, which would then wait for ever for others to gather.
        """
        if isinstance(one, DTensor) and some_empty(one):
            return one.redistribute(self.mesh, [Replicate()] * self.mesh.ndim)
        return one

    def _summed(self, one: Any) -> Any:
        """A tensor without terms of rows that ranks do not have, as a look-up in a split table leaves them: only the
        sum right behind it knows which these are, other functions mistake them for terms of any sum. Its gradient comes
        summed, too: DTensor cannot make such terms of others.
        """
        if not isinstance(one, DTensor) or not any(isinstance(each, _MaskPartial) for each in one.placements):
            return one
        of = [Replicate() if isinstance(each, Partial) else each for each in one.placements]
        block = one.redistribute(self.mesh, of).to_local(grad_placements=of)
        return DTensor.from_local(block, self.mesh, of, run_check=False, shape=one.shape, stride=one.stride())

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(one, DTensor) for one in pytree.tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name in _NUMBERS:
            # Ranks have to go the same way by it, where DTensor tells each the numbers of its own block.
            return func(*(one.full_tensor() if isinstance(one, DTensor) else one for one in args), **kwargs)
        if name == "__setitem__" and _is_split(args[0]):
            self.gathered[name] += 1
            assign(*args)
            return None
        changes = name.endswith("_") and not name.endswith("__")
        if not changes:
            # Backward passes run outside of `implicit_replication`, so that what they need has to be distributed here.
            args, kwargs = pytree.tree_map(self._lifted, (args, kwargs))
            if name not in _ATTRIBUTES:
                args, kwargs = pytree.tree_map(self._filled, (args, kwargs))
        if name not in GATHERED:
            try:
                made = LOCAL[name](func, self.mesh, *args, **kwargs) if name in LOCAL else func(*args, **kwargs)
                return made if changes or name in _ATTRIBUTES else pytree.tree_map(self._summed, made)
            except _REFUSALS:
                if changes:
                    raise  # what it changes in place would be a copy
        self.gathered[name] += 1
        return gathered_call(func, self.mesh, args, kwargs)
