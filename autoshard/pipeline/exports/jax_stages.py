"""Stages as functions of JAX: `jax_stages(planned)` for this process, `jax_stages_code(planned)` as a module alone.

stages = planned.to_jax()
stages.pieces[0, "F"]              the forward of stage 0, jitted, over stages.mesh(0)
stages.run({"x": x, "weight": w})  a step by the schedule: whole arrays in by name, whole arrays out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoshard.engines.check import check_runs
from autoshard.engines.code import CARRIED, CodeWriter, carried_text, imports_of, taken_by
from autoshard.engines.extras import need
from autoshard.engines.kernels import kernels_of
from autoshard.engines.text import Text, Writer
from autoshard.engines.xla_engine import HOST_DEVICES
from autoshard.partition.program import Program
from autoshard.pipeline.exports.stage_spec import PROLOGUE, StagesSpec, named_spec
from autoshard.pipeline.exports.stage_text import CodeName, function_name, text_of
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Place
from autoshard.util.errors import RuntimeSetupError

if TYPE_CHECKING:
    from autoshard.engines.standalone_jax_stages import Stages

FILES = (*CARRIED["jax"][:-1], "standalone_stages", "standalone_jax_stages")
"""The files that the module carries, each before those that need it."""


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
    spec = named_spec(planned)
    _check(spec)
    functions = {place: _function(program, spec, place) for place, program in spec.programs.items()}
    return Stages(spec.plan(functions), given)


def _function(program: Program, spec: StagesSpec, place: Place) -> Callable:
    """A piece as a function of what runs loops, what moves blocks, and blocks, which JAX traces."""
    from autoshard.engines.xla_kernels import XlaKernels

    text: Text = Writer(program, spec.cuts_of(place[0])).text()
    kernels = XlaKernels(text.grid, kernels_of("xla"))
    return lambda _, collectives, *blocks: text.step(kernels, collectives, text.constants, *blocks)


def _check(spec: StagesSpec) -> None:
    for program in spec.programs.values():
        check_runs(program, kernels_of("xla"))


def jax_stages_code(planned: PipelineData, file: str = "stages.py") -> str:
    """The stages of a plan as a module that needs JAX alone: a function for each piece, and what plays the schedule.

    Raises:
        RuntimeSetupError, PlanError: as `jax_stages`.
    """
    need("jax", "stages as code of JAX")
    spec = named_spec(planned)
    _check(spec)
    return "\n".join(_module(spec, file)) + "\n"


def _module(spec: StagesSpec, file: str) -> Iterator[str]:
    writers = _writers(spec)
    bodies = {place: writer.function_lines() for place, writer in writers.items()}
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
    yield from ("", *_plan(spec), "", 'if __name__ == "__main__":', "    main(PLAN, __doc__)")


def _writers(spec: StagesSpec) -> dict[Place, CodeWriter]:
    """Writers of all pieces, which share operators and tables."""
    taken = {*taken_by(FILES), "PLAN", *map(_name, spec.programs), *_stage_names(spec)}
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
    return function_name(place) if place[0] < 0 else f"stage{place[0]}_{function_name(place)}"


def _stage_names(spec: StagesSpec) -> tuple[CodeName, ...]:
    return tuple(CodeName(f"STAGE_{number}") for number in range(spec.planned.stages))


def _plan(spec: StagesSpec) -> Iterator[str]:
    """The plan's values at the end of the module."""
    plan = spec.plan({place: CodeName(_name(place)) for place in spec.programs})
    names = _stage_names(spec)
    yield from (f"{name} = {text_of(stage)}" for name, stage in zip(names, plan.stages, strict=True))
    told: dict[str, Any] = {"stages": names}
    yield f"PLAN = {text_of(replace(plan, **told))}"
