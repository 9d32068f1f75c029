"""Stages as functions of JAX: `jax_stages(planned)` for this process, `jax_stages_code(planned)` as a module alone.

stages = planned.to_jax()
stages.pieces[0, "F"]              the forward of stage 0, jitted, over stages.mesh(0)
stages.run({"x": x, "weight": w})  a step by the schedule: whole arrays in by name, whole arrays out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from autoshard.engines.check import check_runs
from autoshard.engines.code import CARRIED, CodeWriter, carried_text, imports_of, taken_by
from autoshard.engines.extras import need
from autoshard.engines.kernels import kernels_of
from autoshard.engines.stage_pieces import PieceSpec, StandaloneStages
from autoshard.engines.text import Text, Writer
from autoshard.engines.xla_engine import HOST_DEVICES
from autoshard.partition.program import Program
from autoshard.pipeline.exports.stage_spec import PROLOGUE, StagesSpec
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Place
from autoshard.util.errors import RuntimeSetupError

if TYPE_CHECKING:
    from autoshard.engines.standalone_jax_stages import Stages

FILES = (*CARRIED["jax"][:-1], "stage_pieces", "standalone_jax_stages")
"""The files that the module carries, each before those that need it."""
_WORDS = {"P": "once", "F": "forward", "I": "input_gradient", "W": "weight_gradient", "D": "data"}


def jax_stages(planned: PipelineData, devices: Sequence[Any] | None = None) -> Stages:
    """The stages of a plan as functions of JAX on devices of this process; see `engines/standalone_jax_stages.py`.

    Args:
        devices: a device for each rank, by default JAX's first ones.

    Raises:
        RuntimeSetupError: JAX is not installed, or has too few devices.
        PlanError: an operator that the engine xla lacks, or layouts that JAX's shardings cannot say.

    >>> import jax, numpy as np
    >>> from autoshard import nn, trace
    >>> from autoshard.pipeline import plan_pipeline
    >>> net, x = nn.SequentialCell(nn.Dense(6, 8), nn.Dense(8, 4)), np.ones((12, 6), np.float32)
    >>> planned = plan_pipeline(trace(net, x), mesh="pp=2", micro_batches=3, schedule="gpipe")
    >>> stages = jax_stages(planned, jax.devices()[:1] * 2)
    >>> [*stages.pieces], [one.shape for one in stages.run({"x": x}).values()]
    ([(0, 'F'), (1, 'F')], [(12, 4)])
    """
    need("jax", "stages as functions of JAX")
    import jax

    from autoshard.engines.standalone_jax_stages import Stages

    given = list(jax.devices() if devices is None else devices)
    if len(given) < planned.devices:
        raise RuntimeSetupError(
            f"the stages of {planned.graph.name!r} are for {planned.devices} devices, but {len(given)} are given; on "
            f"CPUs XLA_FLAGS={HOST_DEVICES}={planned.devices} makes them"
        )
    spec = StagesSpec(planned)
    _check(spec)
    functions = {place: _function(program, spec, place) for place, program in spec.programs.items()}
    return Stages(spec.plan, functions, given)


def _function(program: Program, spec: StagesSpec, place: Place) -> Callable:
    """A piece as a function of blocks, which JAX traces."""
    from autoshard.engines.xla_collectives import XlaCollectives
    from autoshard.engines.xla_kernels import XlaKernels

    text: Text = Writer(program, spec.cuts_of(place[0])).text()
    kernels = XlaKernels(text.grid, kernels_of("xla"))
    return partial(text.step, kernels, XlaCollectives(text.grid), text.constants)


def _check(spec: StagesSpec) -> None:
    for program in spec.programs.values():
        check_runs(program, kernels_of("xla"))


def jax_stages_code(planned: PipelineData, file: str = "stages.py") -> str:
    """The stages of a plan as a module that needs JAX alone: a function for each piece, and what plays the schedule.

    Raises:
        RuntimeSetupError, PlanError: as `jax_stages`.
    """
    need("jax", "stages as code of JAX")
    spec = StagesSpec(planned)
    _check(spec)
    return "\n".join(_module(spec, file)) + "\n"


def _module(spec: StagesSpec, file: str) -> Iterator[str]:
    writers = _writers(spec)
    bodies = {place: writer.body() for place, writer in writers.items()}
    last = [*writers.values()][-1]
    yield _head(spec.planned, file)
    yield from imports_of(FILES)
    yield from (f"{name} = {value!r}" for value, name in last.tables.items())
    for stage in range(spec.planned.stages):
        yield from ("", f"# -- stage {stage}, {spec.planned.group_of(stage)}")
        yield from (line for place, body in bodies.items() if place[0] == stage for line in ("", "", *body))
    if PROLOGUE in bodies:
        yield from ("", "", "# -- what follows from data alone", "", "", *bodies[PROLOGUE])
    yield from ("", "", "# -- operators", *(f"\n\n{text}" for _, text in last.functions.values()))
    yield from ("", "", "# -- what moves blocks between devices, and plays the schedule", *carried_text(FILES))
    yield from ("", "", *_functions(spec), "", *_plan(spec.plan))
    yield from ("", 'if __name__ == "__main__":', "    main(PLAN, functions_of(PLAN), __doc__)")


def _writers(spec: StagesSpec) -> dict[Place, CodeWriter]:
    """Writers of all pieces, which share operators and tables."""
    taken = {*taken_by(FILES), "PLAN", "functions_of", *map(_name, spec.programs)}
    found: dict[Place, CodeWriter] = {}
    before = None
    for place, program in spec.programs.items():
        before = CodeWriter(program, "jax", taken, spec.cuts_of(place[0]), _name(place), before)
        found[place] = before
    return found


def _head(planned: PipelineData, file: str) -> str:
    return (
        f'"""{planned.graph.name} in {planned.described_devices}, with jax and numpy alone.\n\n'
        f"    python {file} [INPUTS.npz [OUTPUTS.npz]] [--steps N]\n\n"
        "Inputs that are not given are seeded random numbers. The pieces of each stage come first, then their\n"
        "operators, then what plays the schedule on local devices. Made by autoshard, and yours to edit.\n"
        '"""\n\nfrom __future__ import annotations\n'
    )


def _name(place: Place) -> str:
    stage, kind = place
    word = _WORDS.get(kind) or f"update_{kind[1:]}"
    return word if stage < 0 else f"stage{stage}_{word}"


def _functions(spec: StagesSpec) -> Iterator[str]:
    yield "def functions_of(plan: StandaloneStages) -> dict[Place, Callable]:"
    yield '    """The pieces as functions of blocks."""'
    yield "    k, grids = XlaControl(), plan.grids"
    yield "    return {"
    for place in spec.programs:
        stage = place[0]
        grid = f"grids[{spec.planned.schedule.ranks_of_stages[stage]}]" if stage >= 0 else 'Grid((("d", 1),), (0,))'
        yield f"        {place!r}: partial({_name(place)}, k, XlaCollectives({grid})),"
    yield from ("    }", "")


def _plan(plan: StandaloneStages) -> Iterator[str]:
    """The plan's values at the end of the module."""
    yield "PLAN = StandaloneStages("
    yield from _listed("grids", [f"Grid({one.axes!r}, {one.ranks!r})" for one in plan.grids])
    yield from (f"    devices={plan.devices!r},", f"    groups={plan.groups!r},")
    yield from _listed("orders", map(repr, plan.orders))
    yield f"    micro_batches={plan.micro_batches},"
    yield from _listed("inputs", map(repr, plan.inputs))
    yield from _listed("outputs", map(repr, plan.outputs))
    yield from _listed("results", map(str, plan.results))
    yield f"    updates={dict(plan.updates)!r},"
    yield from _listed("pieces", map(_piece_text, plan.pieces))
    yield "    routes=("
    for one in plan.routes:
        before = f"{one.source!r}, {one.output}, {one.stage}, {one.value!r}"
        yield f"        RouteSpec({before}, {one.reads}, {one.moved}, {one.summed}, {one.repeated}),"
    yield from ("    ),", f"    joined={dict(plan.joined)!r},")
    yield f"    prologue={_piece_text(plan.prologue) if plan.prologue is not None else None},"
    yield ")"


def _listed(name: str, items: Any) -> Iterator[str]:
    yield from (f"    {name}=(", *(f"        {one}," for one in items), "    ),")


def _piece_text(piece: PieceSpec) -> str:
    pad = " " * 12
    lines = [f"PieceSpec(\n{pad}{piece.stage}, {piece.kind!r},"]
    for some in (map(repr, piece.inputs), map(str, piece.sources), map(repr, piece.outputs)):
        lines.append(f"{pad}({''.join(f'{chr(10)}{pad}    {one},' for one in some)}\n{pad}),")
    lines += [f"{pad}sums={dict(piece.sums)!r}, rows={dict(piece.rows)!r}, made={dict(piece.made)!r},"]
    return "\n".join([*lines, f"{pad}donated={piece.donated!r},\n        )"])
