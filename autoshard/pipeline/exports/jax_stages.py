"""Stages as functions of JAX: `jax_stages(planned)` for this process, `jax_stages_code(planned)` as a module alone.

stages = planned.to_jax()
stages.pieces[0, "F"]              the forward of stage 0, jitted, over stages.mesh(0)
stages.run({"x": x, "weight": w})  a step by the schedule: whole arrays in by name, whole arrays out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from autoshard.engines.carried import carried, imports
from autoshard.engines.check import check_runs
from autoshard.engines.code_writer import CodeWriter, OperatorFunctions, boundary_text
from autoshard.engines.extras import need
from autoshard.engines.kernels import kernels_of
from autoshard.engines.stage_pieces import PieceSpec, StagesPlan
from autoshard.engines.text import Text, Writer
from autoshard.engines.xla_engine import HOST_DEVICES
from autoshard.partition.program import Program
from autoshard.pipeline.exports.stage_spec import StagesSpec
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Place
from autoshard.util.errors import RuntimeSetupError

if TYPE_CHECKING:
    from autoshard.engines.standalone_jax_stages import Stages

MODULE = "jax-stages"
_WORDS = {"P": "once", "F": "forward", "I": "input_gradient", "W": "weight_gradient", "D": "data"}


def jax_stages(planned: PipelineData, devices: Sequence[Any] | None = None) -> Stages:
    """The stages of a plan as functions of JAX on devices of this process; see `engines/standalone_jax_stages.py`.

    Args:
        devices: a device for each rank, by default JAX's first ones.

    Raises:
        RuntimeSetupError: JAX is not installed.
        PlanError: an operator that the engine xla lacks, or layouts that JAX's shardings cannot say.
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
    functions = OperatorFunctions("jax", module=MODULE)
    for place in spec.programs:  # the names of all operators come first: no value may bear them
        _writer(spec, place, functions).text()
    yield _head(spec.planned, file)
    yield from imports(MODULE)
    for stage in range(spec.planned.stages):
        group = spec.planned.group_of(stage)
        yield from ("", "", f"# -- stage {stage}, {group}")
        for place in spec.programs:
            if place[0] == stage:
                yield from _piece(spec, place, functions)
    for place in spec.programs:
        if place[0] < 0:
            yield from ("", "", "# -- what follows from data alone", *_piece(spec, place, functions))
    yield from ("", "", "# -- operators", *(f"\n\n{text}" for text in functions.texts))
    yield from ("", "", "# -- what moves blocks between devices, and plays the schedule", *carried(MODULE))
    yield from ("", "", *_functions(spec), "", *_plan(spec.plan))
    yield from ("", 'if __name__ == "__main__":', "    main(PLAN, functions_of(PLAN), __doc__)")


def _head(planned: PipelineData, file: str) -> str:
    return (
        f'"""{planned.graph.name} in {planned.described_devices}, with jax and numpy alone.\n\n'
        f"    python {file} [INPUTS.npz [OUTPUTS.npz]] [--steps N]\n\n"
        "Inputs that are not given are seeded random numbers. The pieces of each stage come first, then their\n"
        "operators, then what plays the schedule on local devices. Made by autoshard, and yours to edit.\n"
        '"""\n\nfrom __future__ import annotations\n'
    )


def _writer(spec: StagesSpec, place: Place, functions: OperatorFunctions) -> CodeWriter:
    return CodeWriter(spec.programs[place], "jax", functions, spec.cuts_of(place[0]), _name(place))


def _name(place: Place) -> str:
    stage, kind = place
    word = _WORDS.get(kind) or f"update_{kind[1:]}"
    return word if stage < 0 else f"stage{stage}_{word}"


def _piece(spec: StagesSpec, place: Place, functions: OperatorFunctions) -> Iterator[str]:
    yield from ("", "", *list(_writer(spec, place, functions).whole())[2:])


def _functions(spec: StagesSpec) -> Iterator[str]:
    yield "def functions_of(plan: StagesPlan) -> dict[Place, Callable]:"
    yield '    """The pieces as functions of blocks."""'
    yield "    k, grids = XlaControl(), plan.grids"
    yield "    return {"
    for place in spec.programs:
        stage = place[0]
        grid = f"grids[{spec.planned.schedule.ranks_of_stages[stage]}]" if stage >= 0 else 'Grid((("d", 1),), (0,))'
        yield f"        {place!r}: partial({_name(place)}, k, XlaCollectives({grid})),"
    yield from ("    }", "")


def _plan(plan: StagesPlan) -> Iterator[str]:
    """The plan's values at the end of the module."""
    yield "PLAN = StagesPlan("
    yield from _listed("grids", [f"Grid({one.axes!r}, {one.ranks!r})" for one in plan.grids])
    yield from (f"    devices={plan.devices!r},", f"    groups={plan.groups!r},")
    yield from _listed("orders", map(repr, plan.orders))
    yield f"    micro_batches={plan.micro_batches},"
    yield from _listed("inputs", map(boundary_text, plan.inputs))
    yield from _listed("outputs", map(boundary_text, plan.outputs))
    yield from _listed("results", map(str, plan.results))
    yield f"    updates={dict(plan.updates)!r},"
    yield from _listed("pieces", map(_piece_text, plan.pieces))
    yield "    routes=("
    for one in plan.routes:
        before = f"{one.source!r}, {one.output}, {one.stage}, {boundary_text(one.value)}"
        yield f"        RouteSpec({before}, {one.reads}, {one.moved}, {one.summed}, {one.repeated}),"
    yield from ("    ),", f"    joined={dict(plan.joined)!r},")
    yield f"    prologue={_piece_text(plan.prologue) if plan.prologue is not None else None},"
    yield ")"


def _listed(name: str, items: Any) -> Iterator[str]:
    yield from (f"    {name}=(", *(f"        {one}," for one in items), "    ),")


def _piece_text(piece: PieceSpec) -> str:
    pad = " " * 12
    lines = [f"PieceSpec(\n{pad}{piece.stage}, {piece.kind!r},"]
    for some in (map(boundary_text, piece.inputs), map(str, piece.sources), map(boundary_text, piece.outputs)):
        lines.append(f"{pad}({''.join(f'{chr(10)}{pad}    {one},' for one in some)}\n{pad}),")
    lines += [f"{pad}sums={dict(piece.sums)!r}, rows={dict(piece.rows)!r}, made={dict(piece.made)!r},"]
    return "\n".join([*lines, f"{pad}donated={piece.donated!r},\n        )"])
