"""From settings of `set_auto_parallel_context` to a plan: search, strategies, optimizer parallelism, fusion, stages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from autoshard.api import Planned, plan_traced, without_annotations
from autoshard.exporters.mindspore import from_checkpoint, save_checkpoint, strategies_of
from autoshard.ir.graph import Value
from autoshard.layout.layout import Layout, free_refs
from autoshard.layout.mesh import Mesh
from autoshard.mindspore.algo_parameters import options_of
from autoshard.mindspore.context import DatasetStrategy, ParallelMode, ParallelSettings, Settings
from autoshard.mindspore.stages import groups_of, schedule_of, stages_of
from autoshard.optimize import DEFAULT
from autoshard.pipeline.planning import PlannedPipeline, plan_pipeline
from autoshard.runtime.world import world_size
from autoshard.trace.function import NodeAnnotation, Traced
from autoshard.trace.parameter import Parameter
from autoshard.trace.specs import Requests
from autoshard.transform.micro.statistics import MICRO_BATCH
from autoshard.transform.recompute import backward_begins
from autoshard.util.errors import ContextError
from costmodel import preset

_SEARCHES = {ParallelMode.STAND_ALONE: "sharding_propagation"}


def planned_as_set(
    traced: Traced,
    mesh: Mesh,
    settings: Settings,
    parallel: ParallelSettings,
    strategy: DatasetStrategy,
    states: Mapping[Parameter, tuple[Parameter, ...]],
) -> Planned:
    """The plan of a traced step under these settings.

    Args:
        states: of each trained parameter those of the optimizer, if the step is one of training.

    Raises:
        ContextError: a strategy file that names none of the step's operators; parameters of the algorithm that the
            search does not have.
    """
    mode = parallel.parallel_mode
    alone = mode == ParallelMode.STAND_ALONE
    if alone or mode == ParallelMode.DATA_PARALLEL:
        traced = without_annotations(traced)
    elif parallel.strategy_ckpt_load_file:
        traced = with_strategies(traced, parallel.strategy_ckpt_load_file)
    search = _search(parallel)

    def plan(traced: Traced, search: str) -> Planned:
        limit, options = settings.max_device_memory, {} if alone else options_of(search)
        return plan_traced(traced, mesh, search, preset(parallel.hardware), strategy, limit, options)

    cuts = parallel.enable_parallel_optimizer and bool(states) and not alone
    if cuts and mode == ParallelMode.DATA_PARALLEL:
        found = plan(traced, "zero3")
    else:
        found = plan(traced, search)
        found = (
            plan(with_parallel_optimizer(found.traced, layouts_of(found), parallel, states), _follows(search))
            if cuts
            else found
        )
    if parallel.strategy_ckpt_save_file and not alone:
        save_checkpoint(found.plan, parallel.strategy_ckpt_save_file)
    return replace(found, passes=_passes(parallel))


def planned_in_stages(
    traced: Traced,
    network: Any,
    parts: int,
    settings: Settings,
    parallel: ParallelSettings,
    states: Mapping[Parameter, tuple[Parameter, ...]],
) -> PlannedPipeline:
    """The plan of a traced step, or of a model that is only applied, in stages under these settings.

    Args:
        network: whose cells bear the stages.
        parts: into how many micro batches the batch is cut.
        states: as `planned_as_set` takes them.

    Raises:
        ContextError: settings that stages do not have; as `planned_as_set`.
        StageError: stages that the network cannot be cut into.
    """
    if parallel.strategy_ckpt_save_file:
        raise ContextError("strategy_ckpt_save_file goes with one stage; leave it out, or pipeline_stages at 1")
    if parallel.strategy_ckpt_load_file:
        traced = with_strategies(traced, parallel.strategy_ckpt_load_file)
    borne, chunks = stages_of(network, parallel)
    schedule, chunks = schedule_of(parallel, chunks)
    plan = partial(
        plan_pipeline,
        pipeline=groups_of(parallel, planned_devices(parallel)),
        micro_batches=parts,
        schedule=schedule,
        chunks=chunks,
        stages=None if borne is None else _with_operators(borne, traced),
        hardware=preset(parallel.hardware),
        passes=_passes(parallel),
        memory=settings.max_device_memory,
        statistics=MICRO_BATCH,
    )
    search = _search(parallel)
    found = plan(traced, search=search, options=options_of(search))
    if parallel.enable_parallel_optimizer and states:
        traced, search = with_parallel_optimizer(found.traced, layouts_of(found), parallel, states), _follows(search)
        found = plan(traced, search=search, options=options_of(search))
    return found


def planned_devices(parallel: ParallelSettings) -> int:
    """How many devices there are."""
    return parallel.mesh.devices if parallel.mesh is not None else parallel.device_num or world_size()


def layouts_of(planned: Planned | PlannedPipeline) -> dict[Value, Layout]:
    """How each parameter lies; in stages on the devices of the first that reads it."""
    plans = planned.plans if isinstance(planned, PlannedPipeline) else (planned.plan,)
    known = planned.traced.parameters
    return {value: plan.layouts[value] for plan in reversed(plans) for value in known if value in plan.layouts}


def _with_operators(borne: Mapping[str, int], traced: Traced) -> dict[str, int]:
    """The stages of those cells that have operators or parameters; dropout has none where nothing is trained."""
    names = [node.name for node in traced.graph.nodes] + [value.name for value in traced.parameters]
    return {
        path: stage for path, stage in borne.items() if any(one == path or one.startswith(f"{path}.") for one in names)
    }


def _search(parallel: ParallelSettings) -> str:
    mode = parallel.parallel_mode
    return parallel.search_mode if mode == ParallelMode.AUTO_PARALLEL else _SEARCHES.get(mode, "batch")


def _follows(search: str) -> str:
    """The search where parameters are asked to lie otherwise: "batch" follows no rule but its own."""
    return search if search != "batch" else "sharding_propagation"


def _passes(parallel: ParallelSettings) -> tuple[str, ...]:
    fusion = parallel.comm_fusion
    fuses = fusion is None or bool(fusion.get("openstate", True))
    return tuple(name for name in DEFAULT if name != "combine" or fuses)


def with_strategies(traced: Traced, path: str) -> Traced:
    """The trace with the strategies of a file at the operators that it names, unless the model configures them itself.

    Those of the backward pass and of updates follow from the forward pass; of several users of a parameter the first
    one is configured, since parts alone do not say on which ranks they lie.

    Raises:
        ContextError: it names none of them.
    """
    known = from_checkpoint(path).operators
    forward = traced.graph.nodes[: backward_begins(traced.graph)]
    given = {node: known[node.label] for node in forward if node.label in known}
    if not given:
        raise ContextError(f"strategy_ckpt_load_file {path!r} names none of the operators of {traced.graph.name!r}")
    held: set[Any] = set()
    read = {}
    for node, parts in given.items():
        used = {value for value in node.operands if value in traced.parameters}
        entering, leaving = strategies_of(node, parts)
        if node.operands and node not in traced.annotations and _divides(node, entering) and held.isdisjoint(used):
            read[node] = NodeAnnotation(entering, leaving, node.source)
        held |= used
    return replace(traced, annotations={**traced.annotations, **read})


def _divides(node: Any, parts: tuple[tuple[int, ...], ...]) -> bool:
    """Whether blocks are even, which is all that a tuple can say."""
    pairs = zip(parts, node.operand_types, strict=False)
    return all(
        len(counts) == of.rank and all(size % count == 0 for size, count in zip(of.shape, counts, strict=True))
        for counts, of in pairs
    )


# -- optimizer parallelism


def with_parallel_optimizer(
    traced: Traced,
    layouts: Mapping[Value, Layout],
    parallel: ParallelSettings,
    states: Mapping[Parameter, tuple[Parameter, ...]],
) -> Traced:
    """The trace, asking that parameters which several ranks hold alike, and their states, lie in parts on these ranks.

    They are cut along dim 0 (Rajbhandari et al. 2020, "ZeRO"): gathered before use, gradients reduced and scattered.
    """
    config = parallel.parallel_optimizer_config or {}
    least = config.get("parallel_optimizer_threshold", 64) * 1024
    requests = Requests.after(traced.asked)
    values = {parameter: value for value, parameter in traced.parameters.items()}
    following = {into: i for i, into in enumerate(_replaced(traced))}
    for parameter, held in states.items():
        value = values.get(parameter)
        if (
            value is None
            or not parameter.parallel_optimizer
            or value.type.nbytes < least
            or value in traced.asked.values
        ):
            continue
        layout = cut_further(layouts[value], value.type.shape, config.get("optimizer_weight_shard_size", -1))
        for one in (value, *(values[state] for state in held if state in values)) if layout is not None else ():
            requests.note(one, one, layout, None)
            if one in following:
                requests.note(following[one], one, layout, None)
    outputs = tuple(requests.outputs.get(i) for i in range(len(traced.graph.outputs)))
    return replace(traced, asked=replace(traced.asked, values=dict(requests.inputs), outputs=outputs))


def _replaced(traced: Traced) -> list[Any]:
    """For each output the input that it replaces, or None."""
    updates = dict(traced.graph.updates)
    return [traced.graph.inputs[updates[i]] if i in updates else None for i in range(len(traced.graph.outputs))]


def cut_further(layout: Layout, shape: tuple[int, ...], most: int) -> Layout | None:
    """The layout with dim 0 split also by axes along which the tensor is repeated; None if none divides it.

    Args:
        most: at most so many parts more; -1: as many as there are.
    """
    if not shape:
        return None
    taken, left = [], shape[0] // math.prod(ref.size for ref in layout.dims[0])
    room = math.inf if most == -1 else most
    for ref in free_refs(layout.mesh, tuple(one for dim in layout.dims for one in dim)):
        if left % ref.size == 0 and ref.size <= room:
            taken.append(ref)
            left, room = left // ref.size, room // ref.size
    if not taken:
        return None
    return Layout(layout.mesh, [(*layout.dims[0], *taken), *layout.dims[1:]])


def layout_summary(planned: Planned | PlannedPipeline) -> dict[str, tuple]:
    """Per parameter what MindSpore's `infer_train_layout` tells: device matrix, tensor map, the shape of a rank's part,
    field size, whether it is split evenly, and the group of optimizer parallelism (none: that is in the tensor map).
    """
    from autoshard.layout.tensor_map import TensorMap

    summary = {}
    layouts = layouts_of(planned)
    for value in planned.traced.parameters:
        layout = layouts[value]
        view = TensorMap.of(layout)
        parts = tuple(-(-size // count) for size, count in zip(value.type.shape, layout.parts, strict=True))
        summary[value.name] = (
            list(view.device_matrix),
            list(view.tensor_map),
            list(parts),
            0,
            layout.divides(value.type.shape),
            "",
        )
    return summary
