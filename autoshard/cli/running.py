"""`autoshard run`: a script, a model in a script, or a StableHLO module, on MPI ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from autoshard.cli.output import check_folder, print_json
from autoshard.cli.planned import DATASET, PlanOptions, StageOptions, check_has_stages
from autoshard.cli.progress import note
from autoshard.cli.records import RunRecord
from autoshard.cli.target import TargetError, in_script, is_module
from autoshard.engines.executors import check_engine_device
from autoshard.engines.extras import need
from autoshard.engines.placement import placements
from autoshard.layout.mesh import Mesh
from autoshard.runtime.launch import launch
from autoshard.runtime.placing import place_ranks
from autoshard.util.errors import RuntimeSetupError

if TYPE_CHECKING:
    from autoshard.api import Planned
    from autoshard.pipeline import PlannedPipeline

NUMPY, DEVICE = "numpy", "auto"
_RANKS = re.compile(r"-n\d*|--ranks(=.*)?")


class RunCommand(TyperCommand):
    """Options that follow a script are the script's own; a model or module has none, so what follows it is for us."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        target = next((one for one in args if one.endswith(".py") or in_script(one) or is_module(one)), "")
        ctx.allow_interspersed_args = in_script(target) or is_module(target)
        if target and not ctx.allow_interspersed_args:
            _check_order(args, target)
        return super().parse_args(ctx, args)


def _check_order(args: list[str], script: str) -> None:
    """That the number of ranks does not stand behind a script only, where options are the script's own."""
    i = args.index(script)
    before, behind = ([one for one in some if _RANKS.fullmatch(one)] for some in (args[:i], args[i + 1 :]))
    if behind and not before:
        raise TargetError(
            f"{behind[0]} stands behind {script}, where options are the script's own; write autoshard run -n N {script}"
        )


def run(
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT.py|SCRIPT.py:NAME|MODULE.mlir",
            help="The Python script that every rank runs; or a name in a script that stands for a model with example "
            "inputs, or a function that returns one; or a StableHLO module.",
        ),
    ],
    ranks: Annotated[int, typer.Option("-n", "--ranks", metavar="N", help="Number of ranks to start.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The script's own arguments and options.")
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Host file with lines like 'host' or 'host:4'. Default: this machine."),
    ] = None,
    rank_table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="MindSpore rank table (JSON, version 1.0) instead of a host file."),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(metavar="T", min=1, help="BLAS threads per rank, unless the environment sets them."),
    ] = 1,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.0, help="Seconds after which all ranks are ended. Default: never."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Of a model or module: also run it unsplit (a PyTorch or JAX model in its framework); the exit code "
            "is 1 if the outputs differ, else 0.",
        ),
    ] = False,
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            metavar="AXES",
            help="Of a model or module: the mesh, 'dp=2,tp=4'. Default: one axis of N ranks, or what the module names.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FOLDER",
            help="Of a model: measure further steps, and write FOLDER/trace.json: predicted and measured side by side.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="ENGINE",
            help="Of a model or module: what computes: numpy over MPI, torch (torch.distributed with gloo or NCCL), "
            "torch-compiled (with torch.compile between collectives) or xla (one process, one host device of JAX for "
            "each rank).",
        ),
    ] = NUMPY,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Of the engine torch: what its ranks compute on: cpu, cuda (a host's devices in turn), or auto: cuda "
            "where torch sees a CUDA device on every rank.",
        ),
    ] = DEVICE,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Of a model: write its parameters, and the states of its optimizer, as a checkpoint of one step more.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Of a model: go on from the newest checkpoint there, of whatever mesh, plan or stages.",
        ),
    ] = None,
    *,
    plan: PlanOptions,
    stages: StageOptions,
    as_json: Annotated[
        bool, typer.Option("--json", help="Of a model or module: print what came out as JSON and nothing else.")
    ] = False,
) -> None:
    """Run a Python script, a model on its example inputs, or a StableHLO module on random inputs, on N MPI ranks.

    If a rank fails, or on Ctrl-C, all ranks end, and the exit code is that of the rank that failed. Options
    stand before SCRIPT.py; all that follows it is passed on to the script. Models and modules are planned as by
    `autoshard plan`.
    """
    options = {"hosts": hosts, "rank_table": rank_table, "threads": threads, "timeout": timeout}
    cut = stages.stages
    given = [str(script), *(arguments or [])]
    if trace is not None:
        _check_trace(script, trace, engine)
    if not in_script(script) and not is_module(script):
        own = {
            "engine": engine,
            "device": device,
            "mesh": mesh,
            "pipeline": stages.pipeline,
            "json": as_json or None,
            "save": save,
            "resume": resume,
        }
        _check_script(script, check, {**vars(plan), **own})
        raise typer.Exit(launch(given, ranks, **options))
    check_engine_device(engine, device)
    if device == "cuda" and hosts is None and rank_table is None:
        _check_cuda(engine)
    if engine == "xla" and (hosts is not None or rank_table is not None):
        raise TargetError("--engine xla runs on this host's devices alone; leave out --hosts and --rank-table")
    settings = {**plan.settings, "engine": engine, "device": device}
    if cut is not None:
        _check_stages(script, settings)
        settings["stages"] = cut
    if is_module(script) and (save or resume):
        raise TargetError(f"--save and --resume go with a model, SCRIPT.py:NAME, not with {script}")
    if len(given) > 1:
        kind = "module" if is_module(script) else "model"
        raise TargetError(f"{script} is a {kind} and takes no arguments, but got {' '.join(given[1:])}")
    # Other hosts have to see the folder; they see that of the script or module.
    remote = hosts is not None or rank_table is not None
    if engine != "xla":
        place_ranks(ranks, hosts, rank_table)
    if save is not None:
        check_folder(save)
    near = Path(str(script).rpartition(":")[0] or script).resolve().parent if remote else None
    with TemporaryDirectory(prefix="autoshard_", dir=near) as folder:
        if is_module(script):
            command = [*_prepared_module(script, ranks, mesh, check, Path(folder), settings), *["--json"] * as_json]
        else:
            settings |= {"trace": trace, "silent": as_json, "save": save and save.resolve(), "resume": resume}
            command = _prepared_model(script, ranks, mesh, check, Path(folder), settings)
        code = started(command, ranks, engine, options)
        traced = None if trace is None else _save_trace(Path(command[1]), trace, code)
        if as_json:
            print_json(_outcome(Path(command[1]), code, traced))
        raise typer.Exit(code)


def _outcome(prepared: Path, code: int, trace: Path | None) -> RunRecord:
    """What rank 0 wrote down of a run; of one that failed the exit code."""
    path, shown = prepared.with_suffix(".json"), None if trace is None else str(trace)
    if not path.is_file():
        return RunRecord(exit_code=code, trace=shown)
    result = json.loads(path.read_text(encoding="utf-8"))
    same = {name: result[name] for name in ("operators", "split", "collectives", "seconds")}
    same |= {name: result[name] for name in ("difference", "step_difference") if name in result}
    whose, wrong = result.get("whose"), tuple(result.get("wrong", ()))
    return RunRecord(
        exit_code=code,
        **same,
        outputs=tuple(result["shapes"]),
        compared_with=whose,
        equal=None if whose is None else not wrong,
        wrong=wrong,
        trace=shown,
        saved=result.get("saved"),
    )


def _check_stages(target: Path, settings: Mapping[str, Any]) -> None:
    """That nothing else is asked of a run in stages than it can do."""
    check_has_stages(str(target))
    if settings["dataset_strategy"] != DATASET:
        raise TargetError("--dataset-strategy: not for a run in stages (--pipeline) yet; leave it out")


def _check_cuda(engine: str) -> None:
    """That torch sees a CUDA device on this host, whose ranks are to compute on one."""
    need("torch", f"the engine {engine}")
    from autoshard.engines.torch_devices import seen

    placements("cuda", [seen()])


def _check_trace(target: Path, folder: Path, engine: str) -> None:
    """That a run of the target can be traced into a folder, which may be made."""
    if not in_script(target):
        raise TargetError(f"--trace goes with a model, SCRIPT.py:NAME, not with {target}")
    if engine != NUMPY:
        raise TargetError(f"--trace measures the engine numpy, not {engine}; leave one of both out")
    check_folder(folder)
    from autoshard.runtime.recording import record_files

    for old in record_files(folder):
        old.unlink()  # of a run before


def _save_trace(prepared: Path, folder: Path, code: int) -> Path | None:
    """Write what ranks have recorded, beside what was predicted; of a run that failed (`code`) what it has left."""
    from autoshard.api import Planned
    from autoshard.cli.model_run import prepared_in
    from autoshard.exporters.trace import Span, save_trace, trace_data
    from autoshard.pipeline.exports.trace import stages_trace
    from autoshard.runtime.recording import recorded

    planned = prepared_in(prepared).planned
    try:
        found = recorded(folder, _moments(planned))
    except RuntimeSetupError as error:
        if not code:
            raise
        typer.echo(f"nothing is traced: {error}", err=True)
        return None
    measured = {rank: [Span(*one) for one in spans] for rank, spans in found.items()}
    in_one = isinstance(planned, Planned)
    data = trace_data(planned, measured=measured) if in_one else stages_trace(planned, measured=measured)
    path = save_trace(data, folder / "trace.json")
    note(f"traced to {path}")
    return path


def _moments(planned: Planned | PlannedPipeline) -> Callable[[int], int]:
    """From a rank to how many instructions of a step, or pieces of stages, it records."""
    from autoshard.api import Planned

    if isinstance(planned, Planned):
        return lambda rank: len(planned.program.instructions)
    groups = {rank: i for i, group in enumerate(planned.groups) for rank in group.ranks}
    return lambda rank: len(planned.pieces_of(groups[rank]))


def started(arguments: list[str], ranks: int, engine: str, options: dict[str, Any]) -> int:
    """Run a script on ranks, or for the engine xla in one process that has them all; the exit code."""
    return on_devices(arguments, options["timeout"]) if engine == "xla" else launch(arguments, ranks, **options)


def on_devices(arguments: list[str], timeout: float | None) -> int:
    """Run a script in one process of its own, in which JAX has not counted its devices yet; its exit code.

    Raises:
        TargetError: it has not ended after so many seconds.
    """
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", "autoshard.cli.ending", *arguments], timeout=timeout, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        raise TargetError(f"the run has not ended after {timeout:g} s and was ended") from None


def _check_script(script: Path, check: bool, given: Mapping[str, Any]) -> None:
    """That nothing is asked of a script which only a model or a module can do."""
    usual = {**vars(PlanOptions()), "engine": NUMPY, "device": DEVICE}
    wrong = [f"--{name.replace('_', '-')}" for name, value in given.items() if value != usual.get(name)]
    if wrong:
        raise TargetError(
            f"{' and '.join(wrong)}: for a model (SCRIPT.py:NAME) or a module (.mlir), not for {script}, which plans "
            "itself"
        )
    if check:
        raise TargetError(
            f"--check goes with a model (SCRIPT.py:NAME) or a module (.mlir), not with {script}; a script checks itself"
        )


def _prepared_module(
    module: Path, ranks: int, mesh: str | None, check: bool, folder: Path, settings: dict[str, Any]
) -> list[str]:
    """The script, with its arguments, by which each rank runs the module."""
    from autoshard.cli import module_run

    over = _mesh(mesh, ranks) if mesh is not None else None
    path = module_run.prepare(module, ranks, folder, mesh=over, **settings)
    return [module_run.__file__, str(path), settings["engine"], settings["device"], *["--check"] * check]


def _prepared_model(
    target: Path, ranks: int, mesh: str | None, check: bool, folder: Path, settings: dict[str, Any]
) -> list[str]:
    """The script, with its arguments, by which each rank runs the model."""
    from autoshard.cli import model_run

    stages = settings.get("stages")
    meshes = stages["pipeline"] if stages is not None and mesh is None and "=" in stages["pipeline"] else None
    if meshes is not None:
        _check_groups(meshes, ranks)
    over = _mesh(mesh or str(ranks), ranks) if meshes is None else None
    return [model_run.__file__, str(model_run.prepare(str(target), over, check=check, folder=folder, **settings))]


def _check_groups(text: str, ranks: int) -> None:
    from autoshard.pipeline.transfers.group import read_groups

    total = sum(len(group.ranks) for group in read_groups(text))
    if total != ranks:
        raise TargetError(f"the meshes {text!r} of the stages have {total} devices, but -n starts {ranks} ranks")


def _mesh(text: str, ranks: int) -> Mesh:
    found = Mesh.parse(text)
    if found.devices != ranks:
        raise TargetError(f"mesh '{found}' has {found.devices} devices, but -n starts {ranks} ranks")
    return found
