"""PlannedPipeline: a training step in stages, planned."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.engines.executors import check_engine_device, check_engine_runs
from autoshard.engines.extras import need
from autoshard.engines.session import SessionsByEngine
from autoshard.pipeline.execute.session import PipelineSession
from autoshard.pipeline.exports.dump import save_stage_graphs
from autoshard.pipeline.exports.forms import STAGE_FORMS
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.explained import StageExplainedRecord, explained_stages, stages_text
from autoshard.pipeline.planned.price import PipelinePrice
from autoshard.pipeline.planned.report import report
from autoshard.pipeline.planned.view import pipeline_view
from autoshard.runtime.mpi import default_comm
from autoshard.util.doing import doing
from autoshard.util.errors import AutoshardError
from autoshard.view.page import View
from costmodel import format_seconds

if TYPE_CHECKING:
    from autoshard.engines.standalone_jax_stages import Stages


@dataclass(frozen=True, eq=False)
class PlannedPipeline(PipelineData):
    """A training step in stages, planned: what runs it, what it costs, and what tells of it."""

    def run(self, *inputs: Any, engine: str = "numpy", device: str = "auto") -> Any:
        """Do a step: whole arrays in, what the model returns out, on every rank; parameters have their new values.

        Args:
            engine, device: what computes, as of `Planned.run`; what stages send each other goes over MPI, or through
                this process.

        Raises:
            PlanError: the engine lacks an operator of a program; named with its line.
            RuntimeSetupError: inputs that do not fit, another number of ranks than planned, or what the engine needs
                is not there.
        """
        outputs = self.session_on(engine, device).run(self.traced.inputs(*inputs)).outputs
        self.traced.store(outputs)
        return self.traced.unpack(outputs)

    def check_engine(self, engine: str, device: str = "auto") -> None:
        """That an engine has all operators of the stages' programs, and computes on the device.

        Raises:
            AutoshardError: it lacks one, named with its line, or does not compute there.
        """
        check_engine_device(engine, device)
        for piece in self.programs.pieces.values():
            check_engine_runs(piece.program, engine)

    @cached_property
    def price(self) -> PipelinePrice:
        """Predicted seconds of a step, and memory."""
        return PipelinePrice(self)

    def report(self) -> str:
        """Tables of stages and groups: times, idle shares, memory; and the step."""
        return report(self)

    def dump(self, folder: str | Path, ranks: Sequence[int] | None = None) -> list[Path]:
        """Write the .ir files of the ranks (default: all) to `<folder>/rank_<r>/`; the files written."""
        return list(save_stage_graphs(self, folder, ranks))

    def view(self) -> View:
        """A page to look at it: who does what when, what each group holds, what crosses, and the plan of each stage.

        Notebooks show it in place, `.save("plan.html")` writes one file that needs nothing from the net.
        """
        found = {}
        for form in ("shard", "schedule"):
            # A form that cannot say this plan is left out.
            with contextlib.suppress(AutoshardError):
                found[form] = STAGE_FORMS.text(self, form)
        return pipeline_view(self, found)

    def explain(self, name: str) -> str:
        """How an operator or a value lies in each stage that has it, why, what else it could be, and where it is sent.

        Raises:
            UnknownNameError: no stage has it; the message lists near names.
        """
        return stages_text(self.explained(name))

    def explained(self, name: str) -> tuple[StageExplainedRecord, ...]:
        """The same as Records, one for each stage that has it."""
        with doing("pricing what else it could be"):
            return explained_stages(self, name)

    def page(self) -> str:
        """The HTML of `view()`."""
        return self.view().html

    def save(self, path: str | Path) -> Path:
        """Write the plan to a file, which `plan_pipeline(..., search="FILE.json")` takes up; the path.

        Raises:
            PlanError: it cannot be written.
        """
        return STAGE_FORMS.save(self, "json", path)[0]

    def export(self, to: str, path: str | Path | None = None) -> str:
        """The plan in a form for another framework; also written to a file or into a folder if there is a path.

        Args:
            to: "json" (the whole plan, see its schema), "shard" (MindSpore's lines), "schedule" (the CSV of
                torch.distributed.pipelining), "jax-stages" (a module of functions of JAX), "mpmd" (a module of Shardy's
                MPMD dialect); or what a folder takes: "mindspore" (a strategy checkpoint for each stage),
                "torch-stages" and "torch-pipelining" (a Python module for each stage).

        Returns:
            The text; of forms that are files or a folder the paths, a line each.

        Raises:
            PlanError: an unknown form, one that stages do not have, or one that cannot say this plan.
        """
        return STAGE_FORMS.export(self, to, path)

    def to_jax(self, devices: Sequence[Any] | None = None) -> Stages:
        """The stages as functions of JAX, and what plays them; see `autoshard.pipeline.exports.jax_stages`.

        Args:
            devices: a device for each rank, by default JAX's first ones.

        Raises:
            AutoshardError: the engine xla lacks an operator, JAX cannot say a layout, is not there, or lacks devices.
        """
        need("jax", "to_jax")
        from autoshard.pipeline.exports.jax_stages import jax_stages

        return jax_stages(self, devices)

    def run_label(self, engine: str = "numpy", device: str = "auto") -> str:
        """What the last step of an engine in this process has shown beside what was predicted: seconds, and idle shares
        of ranks."""
        ran = self.session_on(engine, device).last
        if ran is None:
            return "no step has run"
        idle = ", ".join(f"{100 * (1 - busy / ran.seconds):.0f}" for busy in ran.busy)
        shares = {
            rank: share for group, share in zip(self.groups, self.price.idle, strict=True) for rank in group.ranks
        }
        known = ", ".join(f"{100 * shares[rank]:.0f}" for rank in range(self.devices))
        return (
            f"step {ran.seconds:.3g} s, ranks idle for {idle} % of it; predicted {format_seconds(self.price.seconds)} "
            f"on {self.hardware_label}, {known} %"
        )

    @property
    def session(self) -> PipelineSession:
        """The programs bound to the ranks of this process: all of them, or under MPI one."""
        return self.session_on("numpy")

    def session_on(self, engine: str, device: str = "auto") -> PipelineSession:
        """The same with another engine than numpy: torch, or xla; `device` as of `Planned.run`."""
        return self._sessions.on(engine, device)

    @cached_property
    def _sessions(self) -> SessionsByEngine[PipelineSession]:
        return SessionsByEngine(self._begin)

    def _begin(self, engine: str, device: str) -> PipelineSession:
        return PipelineSession(self, default_comm(self.devices), engine, device)
