"""Code: the program of a rank as a Python module of torch or JAX that needs nothing of autoshard.

    text = code(planned.program, "torch")

First the step, for people; then each operator that it calls, as the framework's own functions; then what moves blocks
between ranks, which is the source of this package's own files.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.engines.carried import carried, imports
from autoshard.engines.check import check_runs
from autoshard.engines.code_writer import ENGINES, CodeWriter, boundary_text, boundary_value, numbered
from autoshard.engines.extras import need
from autoshard.engines.kernels import kernels_of
from autoshard.partition.program import Program, Register
from autoshard.util.errors import PlanError

_STARTED = {"torch": "torchrun --nproc-per-node {ranks} {file}", "jax": "python {file}"}


def code(program: Program, framework: str, file: str = "plan.py") -> str:
    """The module's text.

    Raises:
        RuntimeSetupError: the framework is not installed.
        PlanError: an operator that it lacks, or that asks values of the run for their number; axes without common
            pieces, which JAX has no names for.
    """
    need(framework, f"code of {framework}")
    check_runs(program, kernels_of(ENGINES[framework]))
    writer = CodeWriter(program, framework)
    if framework == "jax" and not writer.cuts.is_named:
        raise PlanError(
            f"{program.name!r} cuts an axis of its mesh '{program.mesh}' in ways that have no common pieces, or has "
            "groups that are lists of ranks: JAX's shardings have no names for those; take --to torch-code"
        )
    _check_whole(program)
    step = list(writer.whole())[2:]
    functions = writer.functions.texts
    return "\n".join(
        (
            _head(program, framework, file),
            *imports(framework),
            *step,
            "",
            "",
            "# -- operators",
            *(f"\n\n{text}" for text in functions),
            "",
            "",
            "# -- what moves blocks between ranks",
            *carried(framework),
            *_plan_of(writer),
            "",
            'if __name__ == "__main__":',
            "    main(PLAN, step, __doc__)",
            "",
        )
    )


def _check_whole(program: Program) -> None:
    for one in (*program.inputs, *program.outputs):
        if one.layout.partial:
            raise PlanError(f"{one.name} is partial [{one.layout}], but exported code takes and gives whole values")


def _head(program: Program, framework: str, file: str) -> str:
    started = _STARTED[framework].format(ranks=program.mesh.devices, file=file)
    return (
        f'"""{program.name} on mesh {program.mesh}: what every rank runs, with {framework} and numpy alone.\n\n'
        f"    {started} [INPUTS.npz [OUTPUTS.npz]] [--steps N]\n\n"
        "Inputs that are not given are seeded random numbers. The step comes first, then its operators. Made by\n"
        'autoshard, and yours to edit.\n"""\n\nfrom __future__ import annotations\n'
    )


def _plan_of(writer: CodeWriter) -> Iterator[str]:
    """The plan's values at the end of the module."""
    program, grid = writer.program, writer.cuts.grid
    yield from ("", "", "PLAN = StandalonePlan(", f"    grid=Grid({grid.axes!r}, {grid.ranks!r}),")
    yield f"    axes={tuple(writer.over)!r},"
    for what, registers in (("inputs", program.inputs), ("outputs", program.outputs)):
        names = numbered([one.name for one in registers])
        yield f"    {what}=("
        for name, one in zip(names, registers, strict=True):
            yield f"        {boundary_text(boundary_value(name, one, writer.cuts))},"
        yield "    ),"
    yield f"    updates={dict(program.updates)!r},"
    yield ")"


__all__ = ["Register", "code"]
