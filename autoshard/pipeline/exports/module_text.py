"""The text of one exported module: programs as functions of torch, and what a plan says of them at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.engines.check import check_runs
from autoshard.engines.code import CARRIED, CodeWriter, taken_by
from autoshard.engines.grid import Axes
from autoshard.engines.groups import AxisPieces
from autoshard.engines.kernels import kernels_of
from autoshard.partition.program import Program
from autoshard.pipeline.exports.stage_text import text_of

RUNTIME = (
    *CARRIED["torch"],
    *(f"standalone_stages{part}" for part in ("", "_group", "_torch", "_run")),
)
"""The files that `stages_runtime.py` carries, each before those that need it."""
_OF_RUNTIME = "BoundaryValue", "Grid", "PieceSpec", "StageSpec", "ValueSource", "aten", "constant"


class ModuleText:
    """Programs as functions of one module.

    Args:
        taken: names at the top of the module.
    """

    def __init__(self, programs: Mapping[str, Program], cuts: AxisPieces, taken: str) -> None:
        self.writers: list[CodeWriter] = []
        self.bodies: list[list[str]] = []
        self.name = taken
        names = {*taken_by(RUNTIME), *programs, taken}
        for entry, program in programs.items():
            check_runs(program, kernels_of("torch"))
            before = self.writers[-1] if self.writers else None
            self.writers.append(CodeWriter(program, "torch", names, cuts, entry, before))
            self.bodies.append(self.writers[-1].function_lines())

    @property
    def over(self) -> dict[Axes, None]:
        """The axes over which ranks talk to each other."""
        return self.writers[-1].over

    def text(self, head: str, plan: Any) -> str:
        """The module, with what a plan says of it at the end."""
        last = self.writers[-1]
        tables = [f"{name} = {value!r}" for value, name in last.tables.items()]
        functions = [text for _, text in last.functions.values()]
        lines = [head, "", "from __future__ import annotations", "", "import torch", ""]
        lines += [f"from stages_runtime import {', '.join(_OF_RUNTIME)}", *([""] if tables else []), *tables]
        for body in self.bodies:
            lines += ["", "", *body]
        lines += ["", "", "# -- operators", *(f"\n\n{text}" for text in functions)]
        return "\n".join([*lines, "", "", f"{self.name} = {text_of(plan)}", ""])
