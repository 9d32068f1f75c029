"""plan(): from a model and example inputs to a Planned: strategies, costs, the per-rank program, a run of it.

    planned = plan(model, (x,), devices=8)
    print(planned.report())
    y = planned.run(x)

`run` plays all ranks in this process; under mpiexec each process is one rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autoshard.api.arguments import check_request, chosen_mesh, joined_hardware, known_hardware
from autoshard.engines.executors import check_engine_device, check_engine_runs
from autoshard.engines.extras import need
from autoshard.engines.session import Session, SessionsByEngine
from autoshard.frontends.planning import is_module, planning
from autoshard.frontends.targets import cuttable_target, traced_target
from autoshard.ir.fusion import fused
from autoshard.ir.graph import Value
from autoshard.layout.mesh import Mesh
from autoshard.layout.show import show_layout as draw
from autoshard.optimize import DEFAULT
from autoshard.optimize.pipeline import check_passes
from autoshard.plan.data_layouts import FULL_BATCH, DatasetStrategy, data_layouts
from autoshard.plan.plan import Plan
from autoshard.propagate.traced import annotations_on, mutable_module
from autoshard.runtime.mpi import default_comm
from autoshard.search import find_mode
from autoshard.search.exact.over_mesh_cuts import OPTIMAL
from autoshard.search.memory_limit import check_limit, check_room, fit_device_memory, read_limit
from autoshard.search.modes.auto import NAME as AUTO
from autoshard.search.placement import PLACEMENT, placed
from autoshard.search.planned import PlannedData
from autoshard.search.problem import MEMORY, Problem
from autoshard.search.registry import check_options
from autoshard.search.ring_attention import with_rings
from autoshard.search.unmet_constraints import unmet_constraints
from autoshard.trace.function import Traced
from autoshard.transform.micro.statistics import BATCH, check_statistics
from autoshard.transform.planned_graph import planned_graph
from autoshard.transform.train import accumulated, with_loss_in_pieces
from autoshard.util.doing import doing
from autoshard.util.errors import PlanError
from autoshard.util.gc_paused import gc_paused
from costmodel import Hardware

if TYPE_CHECKING:
    import networkx as nx

    from autoshard.exporters.jax_step import JaxStep
    from autoshard.exporters.torch_module import TorchModule
    from autoshard.view.page import View

DEFAULT_SEARCH = "sharding_propagation"
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def plan(
    target: Any,
    inputs: Any = (),
    mesh: Mesh | str | None = None,
    *,
    devices: int | None = None,
    search: str | None = None,
    hardware: str | Hardware = "cpu",
    dataset_strategy: DatasetStrategy = FULL_BATCH,
    memory: str | int | None = None,
    options: Mapping[str, Any] = _NO_OPTIONS,
    passes: bool | Sequence[str] = True,
    micro_batches: int = 1,
    statistics: str = BATCH,
    loss_pieces: int = 1,
) -> Planned:
    """Trace a model, or read a module; choose a strategy for each operator and a layout for each value.

    Args:
        target: a Cell, a function of tensors, a torch.nn.Module, or what `trace`, `train_step`, `from_torch` or
            `from_jax` returned; or a StableHLO module: what `from_stablehlo` returned, the path of a .mlir file, or
            what JAX lowered.
        inputs: the target's example arguments: arrays or TensorTypes, or nested tuples, lists and dicts of them; of a
            torch module its own tensors, in a dict those given by name. A StableHLO module has its own, as has what is
            traced or imported.
        mesh: the devices as named axes, a Mesh or its text ("dp=2 tp=4"). A module mostly names its own.
        devices: instead of mesh, how many there are; by default as many as ranks were started.
        search: a registered search mode, or the FILE.json of a saved plan; by default `DEFAULT_SEARCH`.
        hardware: what prices are for: a preset of costmodel, "calibrated" or a FILE.json (see `autoshard calibrate`),
            a cluster's FILE.toml, or a Hardware.
        dataset_strategy: how data inputs lie: "full_batch" (whole on each rank), "data_parallel" (dim 0 split
            over all devices), or for each data input a tuple of parts or a Layout. Not for a module, whose inputs
            lie as its shardings ask.
        options: what the mode is asked besides, by name: "auto" has mode and axes; with any mode placement="search"
            looks for the order of devices in which the mesh's axes lie best on the links.
        memory: what a device has, as bytes or as text such as "80 GiB"; "optimal", "auto" and the default mode look for
            a plan that keeps to it, and a plan that needs more is refused. Where it is not given, the last two keep to
            what a device of the hardware has, if they find such a plan.
        passes: what is done to the program that the plan leads to, so that it moves less: True (`DEFAULT` of
            autoshard.optimize), False (nothing), or names of `PASSES`.
        micro_batches: into how many parts the batch (dim 0 of data inputs) is cut, which are done one after the other:
            gradients are added up, and updates are done once. Not for a module.
        statistics: whose a batch normalization takes in training then: "batch" refuses it, "micro_batch" takes those of
            each micro batch, as gradient accumulation does.
        loss_pieces: into how many parts the rows of a training step's logits are cut, of which loss and gradients are
            made one after the other, so that logits are never there as a whole. Not for a module.

    Raises:
        MemoryLimitError: the plan needs more memory than there is; search "optimal" keeps to the limit.
        PlanError: neither a model, nor something traced, nor a module; mesh and devices that contradict each other; a
            module with several meshes, or with operations that cannot be planned.
        AutoshardError: what tracing, a strategy or the search finds wrong.

    >>> import numpy as np
    >>> from autoshard import ops, plan
    >>> planned = plan(lambda x, w: ops.matmul(x, w), (np.ones((16, 12)), np.ones((12, 20))), mesh="dp=2 tp=2")
    >>> planned.run(np.ones((16, 12)), np.ones((12, 20)))[0, 0]
    np.float64(12.0)
    """
    check_request(search, options)
    check_statistics(statistics)
    known = hardware if isinstance(hardware, Hardware) else known_hardware(hardware)
    chosen = check_passes((DEFAULT if passes else ()) if isinstance(passes, bool) else passes)
    if is_module(target):
        _check_module(dataset_strategy, micro_batches, loss_pieces)
        return _plan_module(
            target, inputs, mesh, devices, search or DEFAULT_SEARCH, known, read_limit(memory), options, chosen
        )
    with doing("reading the model"):
        traced = traced_target(target, inputs) if micro_batches == 1 else cuttable_target(target, inputs)
    over, mode = chosen_mesh(mesh, devices), search or DEFAULT_SEARCH
    cut = traced if micro_batches == 1 else accumulated(traced, micro_batches, statistics)
    cut = cut if loss_pieces == 1 else with_loss_in_pieces(cut, loss_pieces)
    found = plan_traced(cut, over, mode, known, dataset_strategy, read_limit(memory), options, chosen)
    if cut is not traced and statistics == BATCH:
        found = replace(found, uncut=traced)
    return replace(found, statistics=statistics)


@gc_paused()
def plan_traced(
    traced: Traced,
    mesh: Mesh,
    search: str,
    hardware: Hardware,
    dataset_strategy: DatasetStrategy = FULL_BATCH,
    memory: int | None = None,
    options: Mapping[str, Any] = _NO_OPTIONS,
    passes: tuple[str, ...] = DEFAULT,
) -> Planned:
    """`plan` for something traced, with everything settled.

    Raises:
        PlanError: a graph with loops, branches or manual computations, which cannot be planned yet.
    """
    graph, annotations = planned_graph(traced.graph, traced.annotations)
    hardware = joined_hardware(hardware, mesh)
    if hardware.device.fusion != "none":
        graph, became = fused(graph, hardware.device.fusion)
        annotations = {became.get(node, node): one for node, one in annotations.items()}

    def problem_on(mesh: Mesh) -> Problem:
        given = data_layouts(traced.graph, mesh, dataset_strategy)
        asked = annotations_on(traced, mesh)
        return Problem(
            graph,
            mesh,
            hardware,
            annotations,
            # Searches that price take a full batch as whole, and rules may split it.
            {} if dataset_strategy == FULL_BATCH else given,
            asked=asked.values,
            asked_outputs=asked.outputs[traced.graph.name],
            work=lambda: mutable_module(traced, mesh),
            options=_options(memory, options),
            elsewhere=problem_on,
            passes=passes,
        )

    found, ignored, limit = _searched(search, problem_on(mesh), memory)
    return Planned(traced, found, hardware, passes, ignored=ignored, memory=limit)


def _plan_module(
    target: Any,
    inputs: Any,
    mesh: Mesh | str | None,
    devices: int | None,
    search: str,
    hardware: Hardware,
    memory: int | None,
    options: Mapping[str, Any],
    passes: tuple[str, ...],
) -> Planned:
    with doing("reading the module"):
        ready = planning(target, None if mesh is None else chosen_mesh(mesh, devices), devices)
    traced_target(ready.traced, inputs)
    asked = ready.imported.asked
    graph, hardware = ready.traced.graph, joined_hardware(hardware, ready.mesh)
    if hardware.device.fusion != "none":
        graph, _ = fused(graph, hardware.device.fusion)

    def problem_on(mesh: Mesh) -> Problem:
        return Problem(
            graph,
            mesh,
            hardware,
            asked=asked.values,
            asked_outputs=asked.outputs.get(graph.name, ()),
            work=ready.work,
            places=ready.places,
            options=_options(memory, options),
            elsewhere=problem_on,
            passes=passes,
        )

    found, ignored, limit = _searched(search, problem_on(ready.mesh), memory)
    return Planned(ready.traced, found, hardware, passes, module=ready.imported, ignored=ignored, memory=limit)


def _options(memory: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, **({} if memory is None else {MEMORY: memory})}


def _searched(search: str, problem: Problem, memory: int | None) -> tuple[Plan, tuple[str, ...], int | None]:
    """The plan that a mode finds, or that lies in a file, what was asked and is not followed by it, and the limit it
    was searched under; refused if it needs more memory than somebody said there is."""
    from autoshard.exporters.plan_file import load_plan

    check_options(search, [name for name in problem.options if name not in (MEMORY, PLACEMENT)])
    if memory is not None and search != OPTIMAL:  # which proves what the least is
        check_room(problem.graph, problem.mesh.devices, memory)
    with doing(f"searching by {search}"):
        if search.endswith(".json"):
            found = load_plan(search, problem.graph, problem.mesh)
        else:
            mode = find_mode(search)
            run = partial(placed, mode) if PLACEMENT in problem.options else mode
            kept = memory is None and search in (DEFAULT_SEARCH, AUTO)
            found, memory = fit_device_memory(run, problem) if kept else (run(problem), memory)
        found = with_rings(found, problem.hardware)
    check_limit(problem, found)
    return found, unmet_constraints(problem, found), memory


def _check_module(strategy: DatasetStrategy, micro_batches: int, loss_pieces: int) -> None:
    if micro_batches != 1:
        raise PlanError(
            f"plan: micro_batches is {micro_batches!r}, but a module does not say which of its inputs are data; "
            "cut what it was lowered from"
        )
    if loss_pieces != 1:
        raise PlanError(
            f"plan: loss_pieces is {loss_pieces!r}, but a module does not say which of its values are gradients; "
            "cut what it was lowered from"
        )
    if strategy != FULL_BATCH:
        raise PlanError(
            f"plan: dataset_strategy is {strategy!r}, but a module's inputs lie as its shardings ask; leave it out"
        )


@dataclass(frozen=True, eq=False)
class Planned(PlannedData):
    """A traced model and its plan, and what reads them; program, cost and the rest are worked out when first asked for.

    >>> import numpy as np
    >>> from autoshard import nn, plan
    >>> planned = plan(nn.Dense(12, 64), (np.ones((16, 12), np.float32),), mesh="dp=2 tp=4")
    >>> planned.run(np.ones((16, 12), np.float32)).shape
    (16, 64)
    >>> str(planned.plan.mesh), planned.cost.seconds > 0
    ('dp=2 tp=4', True)
    """

    @property
    def session(self) -> Session[Planned]:
        """The program bound to the ranks of this process: all of them, or under MPI one."""
        return self.session_on("numpy")

    def __str__(self) -> str:
        return self.report()

    def _repr_html_(self) -> str:
        """In notebooks: what a step costs, and what costs most. `view()` shows all."""
        from autoshard.report.notebook import plan_html

        return plan_html(self)

    def report(self, full: bool = False) -> str:
        """Tables of strategies, causes, redistributions and costs; equal layers are one row unless `full`."""
        from autoshard.report.plan import report

        return report(self, full=full)

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        from autoshard.exporters.plan_json import to_json

        return to_json(self)

    def explain(self, name: str) -> str:
        """How an operator or a value lies in the plan, what decided that, what else it could be, and what it costs.

        Raises:
            UnknownNameError: the plan has no such name; the message lists near ones.
        """
        from autoshard.report.explain_plan import explain_name

        return explain_name(self, name)

    def plot(self, what: str, path: str | Path) -> Path:
        """Write a picture of a step, by matplotlib (the extra `viz`); the path.

        Args:
            what: "timeline", when what runs, or "memory", what lies in memory meanwhile.
            path: ends in .svg, .png or .pdf.

        Raises:
            PlanError: no such picture or format, matplotlib is missing, or the file cannot be written.
        """
        from autoshard.exporters.plan_json import to_json
        from autoshard.view.plots import check_plot, plot

        check_plot(what, path)
        return plot(to_json(self, everything=True), what, path)

    def view(self, other: Planned | None = None) -> View:
        """A page to look at it: what costs most, the timeline, memory, the graph, who holds what, and why.

        Notebooks show it in place, `.save("plan.html")` writes one file that needs nothing from the net.

        Args:
            other: a plan of the same model, to be shown beside it with what differs.
        """
        from autoshard.exporters.plan_json import to_json
        from autoshard.view.page import exported, view_of

        both = (self,) if other is None else (self, other)
        return view_of([to_json(one, everything=True) for one in both], [exported(one) for one in both])

    def save(self, path: str | Path) -> Path:
        """Write the plan to a file, which `plan(..., search="FILE.json")` takes up for the same model; the path."""
        from autoshard.exporters.plan_file import save_plan

        return save_plan(self.plan, path)

    def export(self, to: str, path: str | Path | None = None) -> str:
        """The plan in the form of another framework or viewer; also written to a file if there is a path.

        Args:
            to: "json" (the whole plan, see its schema), "dtensor", "jax", "sdy", "mindspore", "shard",
                "model_explorer", "node_data", "graphml" or "dot"; what a rank runs: "torch-code", "jax-code" (Python
                modules that need torch or JAX alone) or "stablehlo"; or what only files can be: "memory_viz" and
                "chakra", of which the paths are returned, a line each.

        Raises:
            PlanError: an unknown form, or one that cannot say this plan.
        """
        from autoshard.exporters.export import PLAN_FORMS

        return PLAN_FORMS.export(self, to, path)

    def to_networkx(self) -> nx.MultiDiGraph:
        """The graph with what the plan says of it, as networkx has graphs; see `exporters.plan_networkx`."""
        from autoshard.exporters.plan_networkx import plan_networkx

        return plan_networkx(self)

    def session_on(self, engine: str, device: str = "auto") -> Session[Planned]:
        """The same with another engine than numpy: torch, or xla; `device` as of `run`."""
        return self._sessions.on(engine, device)

    @cached_property
    def _sessions(self) -> SessionsByEngine[Session[Planned]]:
        return SessionsByEngine(self._begin)

    def _begin(self, engine: str, device: str) -> Session[Planned]:
        return Session(self, default_comm(self.plan.mesh.devices), engine, device)

    def run(self, *inputs: Any, engine: str = "numpy", device: str = "auto") -> Any:
        """Run the program: whole arrays in, what the target returns out, on every rank.

        Parameters have their present values, and keep what the model updates. Under MPI rank 0's arrays
        count.

        Args:
            engine: what computes and communicates: "numpy" (over MPI), "torch" (`torch.distributed`, where each rank
                is a process; else all ranks here), "torch-compiled" (the same on ranks that are processes, with
                operators between collectives compiled by `torch.compile`) or "xla" (one program for all of JAX's
                devices, which are the ranks).
            device: what ranks of torch compute on: "cpu", "cuda" or "auto" (`autoshard.engines.placement`).

        Raises:
            PlanError: the engine lacks an operator of the program; named with its line.
            RuntimeSetupError: inputs that do not fit, another number of ranks than planned, or what the engine needs
                is not there.
        """
        return self.session_on(engine, device).call(*inputs)

    def check_engine(self, engine: str, device: str = "auto") -> None:
        """That an engine has all operators of the program, and computes on the device.

        Raises:
            AutoshardError: it lacks one, named with its line, or does not compute there.
        """
        check_engine_device(engine, device)
        check_engine_runs(self.program, engine)

    def to_jax(self, devices: Sequence[Any] | None = None) -> JaxStep:
        """The program as a function of JAX with exactly the plan's collectives; see `autoshard.exporters.jax_step`.

        Raises:
            AutoshardError: the engine xla lacks an operator, JAX cannot say a layout, is not there, or lacks devices.
        """
        need("jax", "to_jax")
        from autoshard.exporters.jax_step import JaxStep

        return JaxStep(self, devices)

    def to_torch(self, module: Any = None, *, compiled: bool = False, device: str = "auto") -> TorchModule:
        """The program as a module of torch on this rank of torch.distributed; see `autoshard.exporters.torch_module`.

        Args:
            module: the torch module that was imported, whose names `state_dict` then has; tied tensors have several.
            compiled: whether operators between two collectives are compiled together, by `torch.compile`.
            device: what ranks compute on, as of `run`.

        Raises:
            PlanError: the engine torch lacks an operator, DTensors cannot say a layout, or it is another module.
            RuntimeSetupError: torch is not there, another number of ranks than planned, or there is no such device.
        """
        need("torch", "to_torch")
        from autoshard.exporters.torch_module import TorchModule

        return TorchModule(self, module, compiled, device)

    def dump(self, folder: str | Path, ranks: Sequence[int] | None = None) -> list[Path]:
        """Write the .ir files of the ranks (default: all) to `<folder>/rank_<r>/`; the files written."""
        from autoshard.exporters.ir_dump import save_graphs

        return list(save_graphs(self.plan, self.program, Path(folder), ranks))

    def show_layout(self, name: str) -> str:
        """A picture of which rank holds which block of a value, named by itself or by its operator."""
        value = self._value(name)
        layout = self.plan.layouts[value]
        return f"{value.name} {value.type} [{layout}]\n{draw(value.type.shape, layout)}"

    def _value(self, name: str) -> Value:
        for value in self.graph.values:
            if value.name == name:
                return value
        return self.graph.node(name).results[0]


# -- arguments -----------------------------------------------------------------------------------------------


def without_annotations(traced: Traced) -> Traced:
    """The same model with no strategy fixed, as stand_alone and data_parallel run it."""
    return replace(traced, annotations={})
