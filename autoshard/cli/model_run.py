"""`autoshard run SCRIPT.py:NAME`: the launching process loads, plans and writes the model down; each rank runs it.

So a script, and what it imports, is loaded once, not by every rank.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from autoshard.api import Planned, plan
from autoshard.cli.agreement import Agreement, Arrays, compare
from autoshard.cli.kept import keep, parameters_of, take_up
from autoshard.cli.module_run import SEED, UNSPLIT, counted, is_narrow, random_inputs, run_summary, shown_types
from autoshard.cli.rounding import moved_by_rounding
from autoshard.cli.target import TargetError, load_target, prints_apart
from autoshard.cli.ties import picked_among_equal
from autoshard.frontends.torch.export import seed_torch
from autoshard.ir.graph import DATA, Value
from autoshard.layout.mesh import Mesh
from autoshard.mindspore.communication import get_rank
from autoshard.mindspore.context import set_auto_parallel_context
from autoshard.pipeline.execute.group import GroupRun
from autoshard.pipeline.execute.session import PipelineSession
from autoshard.pipeline.in_any_form import plan_auto
from autoshard.pipeline.planning import PlannedPipeline, plan_pipeline
from autoshard.runtime.interpret import Executor
from autoshard.runtime.stored import Stored
from autoshard.search.modes.auto import NAME as AUTO
from autoshard.trace.evaluate import evaluate
from autoshard.trace.parameter import Parameter
from autoshard.trace.structure import flatten, unflatten
from autoshard.transform.micro.statistics import BATCH
from autoshard.util.doing import doing

RECORDED_STEPS = 3
AnyPlanned = Planned | PlannedPipeline


@dataclass(frozen=True)
class Wanted:
    """What a run has to lead to: outputs, and by the names of the graph's inputs what becomes of them; whose it is."""

    outputs: list[np.ndarray]
    updated: Mapping[str, np.ndarray]
    whose: str


@dataclass(frozen=True)
class Prepared:
    """What ranks are given: the plan, inputs, what to compare with (None: nothing), and the engine to run on."""

    planned: Planned | PlannedPipeline
    inputs: tuple
    wanted: Wanted | None
    trace: Path | None = None
    """Where ranks record when each instruction ran; None: nowhere."""
    engine: str = "numpy"
    """What computes and communicates."""
    device: str = "auto"
    """What ranks of the engine torch compute on."""
    silent: bool = False
    """Whether the outcome is written down only, and not printed."""
    save: Path | None = None
    """The directory of checkpoints in which what the run leads to is kept; None: nowhere."""
    step: int = 0
    """Of the checkpoint that the run goes on from."""


def prepare(
    target: str,
    mesh: Mesh | None,
    search: str | None,
    check: bool,
    folder: Path,
    trace: Path | None = None,
    engine: str = "numpy",
    device: str = "auto",
    stages: Mapping[str, Any] | None = None,
    silent: bool = False,
    save: Path | None = None,
    resume: Path | None = None,
    **settings: Any,
) -> Path:
    """Plan the model of a target and write it to a file in `folder`; the file.

    A PyTorch or JAX model is compared with what its framework makes of outputs, parameters and buffers: in a step of
    training by the framework's own derivatives and optimizer. Any other model, one that draws random numbers, and a
    step that takes statistics of each micro batch, is compared with its own unsplit run. A model without example inputs
    gets seeded random ones.

    Args:
        trace: where ranks record when each instruction ran, in steps after the first.
        silent: whether the outcome is written down only.
        stages: of a run in stages what else `plan_pipeline` takes by name; `mesh` may be None then.
        save: the directory of checkpoints in which ranks keep what the run leads to.
        resume: the one whose newest checkpoint the run goes on from; what it leads to is then compared with the model's
            own unsplit run.
        settings: what else `autoshard.plan` takes by name.

    Raises:
        TargetError: a target that leads to no model.
        AutoshardError: what planning it finds wrong.
    """
    # A script may ask how many devices there are while it is loaded.
    if mesh is not None:
        set_auto_parallel_context(device_num=mesh.devices)
    seed_torch(SEED)  # models that draw their own weights draw the same in every run
    model, inputs = load_target(target)
    with prints_apart():
        if stages is None and search == AUTO:
            planned: Planned | PlannedPipeline = plan_auto(model, inputs, mesh, **settings)
        elif stages is None:
            planned = plan(model, inputs, mesh, search=search, **settings)
        else:
            known = {
                name: settings[name]
                for name in ("hardware", "micro_batches", "statistics", "loss_pieces", "memory", "options")
            }
            planned = plan_pipeline(model, inputs, mesh, search=search, **stages, **known)
    step = 0 if resume is None else take_up(planned, resume)
    inputs = inputs_of(planned, model, inputs)
    wanted = wanted_of(planned, model if resume is None else None, inputs) if check else None
    path = folder / f"{target.rpartition(':')[2]}.pickle"
    write(Prepared(planned, inputs, wanted, trace, engine, device, silent, save, step), path)
    return path


def wanted_of(planned: AnyPlanned, model: Any, inputs: tuple) -> Wanted:
    """What a run of a model has to lead to: its framework's result, or that of its own unsplit run."""
    _make_parameters(planned)
    with doing("running it unsplit, to compare with"):
        return _wanted(planned, model, inputs)


def write(prepared: Prepared, path: Path) -> None:
    """Write to a file what ranks are to run.

    Raises:
        AutoshardError: what the engine finds wrong.
    """
    if prepared.save is not None:
        parameters_of(prepared.planned)
    _make_parameters(prepared.planned)
    prepared.planned.check_engine(prepared.engine, prepared.device)
    planned = prepared.planned
    if isinstance(planned, Planned) and planned.module is not None:  # ranks need the plan alone, not what JAX has read
        prepared = replace(prepared, planned=replace(planned, module=None))
    path.write_bytes(pickle.dumps(prepared))


def _make_parameters(planned: AnyPlanned) -> None:
    """Make them now: what makes them may be the script's own, which ranks do not load."""
    for parameter in planned.traced.parameters.values():
        if not isinstance(parameter.pending, Stored):
            _ = parameter.data


def _wanted(planned: AnyPlanned, model: Any, inputs: tuple) -> Wanted:
    own = planned.statistics != BATCH
    if hasattr(model, "reference_state") and not model.random and not own:
        names = {value.name: parameter.name for value, parameter in _updated(planned).items()}
        state = model.reference_state() if names else {}
        updated = {name: state[known] for name, known in names.items() if known in state}
        return Wanted(model.reference(), updated, f"{model.framework}'s result")
    return Wanted(*_whole(planned, inputs), UNSPLIT)


def _updated(planned: AnyPlanned) -> dict[Value, Parameter]:
    """The parameters that a run changes, by the graph's inputs, whose names stay when all is written down."""
    traced = planned.traced
    return {traced.graph.inputs[into]: traced.updated[out] for out, into in traced.graph.updates.items()}


def run_prepared(path: Path) -> int:
    """Run what was prepared on the ranks that are there; the exit code: 1 if it does not lead to what is wanted.

    Rank 0 also writes what it found beside the file, as JSON: see `outcome`.
    """
    return run(prepared_in(path), path)


def run(prepared: Prepared, path: Path) -> int:
    """`run_prepared` of what the file at `path` held."""
    planned, wanted = prepared.planned, prepared.wanted
    before = _values(planned, wanted)
    given = (
        [np.array(one) for one in planned.traced.inputs(*prepared.inputs)]
        if wanted is not None and get_rank() == 0
        else []
    )
    begun = perf_counter()
    outputs = arrays_in(planned.run(*prepared.inputs, engine=prepared.engine, device=prepared.device))
    seconds = perf_counter() - begun
    saved = None if prepared.save is None else keep(planned, prepared.save, prepared.step + 1)
    code = 0 if get_rank() else _print_outcome(prepared, path, outputs, seconds, before, given, saved)
    if prepared.trace is not None:
        record_steps(planned, prepared.inputs, prepared.trace)
    return code


def record_steps(planned: Planned | PlannedPipeline, inputs: Sequence[Any], folder: Path) -> None:
    """Run more steps and record them; the last one stays, as the first ones make connections and buffers."""
    from autoshard.runtime.recording import recording

    session = planned.session
    timed = session.groups[0] if isinstance(session, PipelineSession) else session.executor
    assert isinstance(timed, GroupRun | Executor), "only numpy's engine records"
    with recording(timed, session.comm, folder):
        for _ in range(RECORDED_STEPS):
            planned.run(*inputs)


def prepared_in(path: Path) -> Prepared:
    """What `prepare` has written to a file."""
    return pickle.loads(path.read_bytes())


def _print_outcome(
    prepared: Prepared,
    path: Path,
    outputs: list[np.ndarray],
    seconds: float,
    before: dict[str, np.ndarray],
    given: Sequence[np.ndarray],
    saved: Path | None,
) -> int:
    """Compare what came out, print it, and write it beside the file; the exit code."""
    planned, wanted = prepared.planned, prepared.wanted
    lines = [run_summary(planned, outputs)]
    if isinstance(planned, PlannedPipeline):
        lines.append(planned.run_label(prepared.engine, prepared.device))
    if saved is not None:
        lines.append(f"saved as {saved}")
    if not prepared.silent:
        print("\n".join(lines), flush=True)
    agreed, whose = None, None if wanted is None else wanted.whose
    if wanted is not None:
        agreed = _compared(planned, wanted, outputs, before, given)
        if not prepared.silent:
            _print_agreement(agreed, wanted.whose)
            _print_ties(planned, agreed, wanted.whose, given)
    found = {**outcome(planned, agreed, seconds), "shapes": shown_types(outputs), "whose": whose}
    found["saved"] = None if saved is None else str(saved)
    path.with_suffix(".json").write_text(json.dumps(found), encoding="utf-8")
    return 1 if agreed is not None and agreed.wrong else 0


def _print_agreement(agreed: Agreement, whose: str) -> None:
    for line in agreed.wrong:
        print(f"differs from {whose}: {line}", file=sys.stderr)
    print(f"{agreed}" if agreed.wrong else f"{agreed}\nequal to {whose}")


def _print_ties(planned: AnyPlanned, agreed: Agreement, whose: str, given: Sequence[np.ndarray]) -> None:
    """What differs because values are equal of which a framework picks others."""
    if agreed.wrong and whose != UNSPLIT:
        for line in picked_among_equal(planned.traced, given):
            print(f"note: {line}; which of them is not said, autoshard takes the first", file=sys.stderr)


def _compared(
    planned: AnyPlanned, wanted: Wanted, outputs: list[np.ndarray], before: Arrays, given: Sequence[np.ndarray]
) -> Agreement:
    after, narrow = _values(planned, wanted), is_narrow(planned.traced.graph)
    agreed = compare(outputs, wanted.outputs, before, after, wanted.updated, narrow=narrow)
    if not agreed.wrong_updates:
        return agreed
    for loose in moved_by_rounding(planned.traced, given, agreed.wrong_updates):
        agreed = compare(outputs, wanted.outputs, before, after, wanted.updated, loose, narrow)
        if not agreed.wrong_updates:
            break
    return agreed


def outcome(planned: AnyPlanned, agreed: Agreement | None, seconds: float) -> dict[str, Any]:
    """The row of a run in a table: operators, how many are split, collectives, seconds of the run, agreement."""
    found = {**counted(planned), "seconds": seconds}
    return found if agreed is None else {**found, **asdict(agreed)}


def _values(planned: AnyPlanned, wanted: Wanted | None) -> dict[str, np.ndarray]:
    """The present values of parameters that are compared, by the names of the graph's inputs."""
    names = set() if wanted is None else set(wanted.updated)
    return {value.name: np.array(one.data) for value, one in _updated(planned).items() if value.name in names}


def inputs_of(planned: AnyPlanned, model: Any, inputs: tuple) -> tuple:
    """The example inputs, those that come with the model, or random ones."""
    if inputs:
        return inputs
    if hasattr(model, "example_arrays"):
        return model.example_arrays
    arrays = random_inputs(planned.graph, SEED)
    data = [array for array, role in zip(arrays, planned.graph.roles, strict=True) if role == DATA]
    return tuple(unflatten(planned.traced.arguments, data))


def _whole(planned: AnyPlanned, inputs: tuple) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Outputs and updates of the unsplit run, the batch in one piece; nothing is updated."""
    traced = planned.uncut or planned.traced
    found = evaluate(traced.graph, traced.inputs(*inputs))
    updates = traced.graph.updates.items()
    updated = {traced.graph.inputs[into].name: np.asarray(found[out]) for out, into in updates}
    return arrays_in(traced.unpack(found)), updated


def arrays_in(returned: Any) -> list[np.ndarray]:
    """The arrays in what a model returned, in order.

    Raises:
        TargetError: there is none.
    """
    found, _ = flatten(returned, lambda part: isinstance(part, np.ndarray | np.generic))
    arrays = [np.asarray(one) for _, one in found]
    if not arrays:
        raise TargetError(f"the model returned {type(returned).__name__}, which holds no array")
    return arrays


if __name__ == "__main__":
    # By its own name, so that what was written down by that name is found.
    from autoshard.cli import model_run

    sys.exit(max(model_run.run_prepared(Path(one)) for one in sys.argv[1:]))
