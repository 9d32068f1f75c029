"""Every check that needs a GPU, in one script; what it could not do it says, with the reason.

    python -m benchmarks.gpu [--device cuda|cpu] [--only operators,programs,...] [--ranks 1,2] [--quick] [--json]

operators    all samples of all operators on the device, against numpy
programs     models, forward and training, by `autoshard run --check --engine torch` on 1 rank, and on several ranks
             that share the device (gloo through copies on the host)
nccl         the same with a GPU for each rank, which send by NCCL
compiled     two of them by the engine torch-compiled on 1 rank
xla          two of them by the engine xla on JAX's device
calibration  `autoshard calibrate --device`, and the file read again
step         a training step of Llama's layers on one device, engine torch beside PyTorch by hand with `torch.compile`
memory       what that step takes at its peak, beside what is predicted

Without a GPU nothing is checked, which is said, and the exit code is 0; `--device cpu` runs the same code on CPUs, in
small. The exit code is 1 if any check failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoshard.engines.kernels import kernels_of
from benchmarks.engine_operators import outcome
from tests.oracle.samples import SAMPLES

ROOT = Path(__file__).resolve().parents[1]
DONE, FAILED, NOT_DONE = "done", "failed", "not done"
MODELS = ROOT / "sample_code/07_torch_models/samples.py"
NAMES = ("gpt2", "llama", "mixtral", "resnet", "gpt2_training", "llama_training", "mixtral_training", "resnet_training")
QUICK_NAMES = ("llama", "llama_training")
SMALL = [f"{ROOT / 'benchmarks/gpu_models.py'}:{name}" for name in ("forward", "training")]
"""On CPUs."""
_LIMIT = 600


@dataclass(frozen=True)
class Found:
    """What became of one check."""

    check: str
    state: str
    told: str
    figures: Any = None


class NotDone(Exception):
    """A check that this machine does not allow, with the reason."""


Check = Callable[[argparse.Namespace], Iterator[Found]]


def operators(given: argparse.Namespace) -> Iterator[Found]:
    """Every operator on the device equals numpy."""
    kernels, wrong, ran = kernels_of("torch", _named(given.device)), {}, 0
    samples = SAMPLES[::10] if given.quick else SAMPLES
    for sample in samples:
        told = outcome(kernels, sample)
        ran += not told.startswith("lacking")
        if told and not told.startswith("lacking"):
            wrong.setdefault(sample.op.name, told)
    said = f"{ran - len(wrong)} of {ran} samples equal" + "".join(f"; {name}: {why}" for name, why in wrong.items())
    yield Found("operators", FAILED if wrong else DONE, said)


def programs(given: argparse.Namespace) -> Iterator[Found]:
    """Models on one rank, and on several that share the device."""
    for ranks in given.ranks:
        yield from _run_all(given, ranks, f"programs on {ranks} rank{'s' * (ranks > 1)}")


def nccl(given: argparse.Namespace) -> Iterator[Found]:
    """Models with a device for each rank."""
    from autoshard.engines.torch_devices import seen

    found = seen()
    if given.device == "cpu":
        raise NotDone("on CPUs ranks send by gloo, as in the check of programs")
    if not found.has_nccl:
        raise NotDone("this torch was built without NCCL")
    if len(found.cuda) < 2:
        raise NotDone(f"torch sees {len(found.cuda)} GPU, and NCCL refuses two ranks on one")
    yield from _run_all(given, len(found.cuda), f"programs by NCCL on {len(found.cuda)} GPUs")


def compiled(given: argparse.Namespace) -> Iterator[Found]:
    """Models by compiled stretches on one rank."""
    yield from _run_all(given, 1, "programs compiled by torch", QUICK_NAMES, "torch-compiled")


def xla(given: argparse.Namespace) -> Iterator[Found]:
    """Models by XLA on the device that JAX has."""
    import jax

    if given.device == "cuda" and (found := jax.default_backend()) != "gpu":
        raise NotDone(f"JAX computes on {found} here; pip install 'jax[cuda13]'")
    yield from _run_all(given, 1, "programs compiled by XLA", QUICK_NAMES, "xla")


def _run_all(
    given: argparse.Namespace, ranks: int, what: str, names: Sequence[str] = NAMES, engine: str = "torch"
) -> Iterator[Found]:
    device = "auto" if engine == "xla" else given.device  # JAX computes where it does
    for target in _targets(given, names):
        words = ["run", target, "-n", str(ranks), "--check", "--engine", engine, "--device", device]
        yield _command(f"{what}: {target.rpartition(':')[2]}", [*words, "--timeout", str(_LIMIT)])


def _targets(given: argparse.Namespace, names: Sequence[str]) -> list[str]:
    if given.device == "cpu":
        return SMALL
    return [f"{MODELS}:{name}" for name in (QUICK_NAMES if given.quick else names)]


def _command(what: str, words: Sequence[str]) -> Found:
    """What a command of autoshard says last."""
    command = [sys.executable, "-m", "autoshard", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    last = ((done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["nothing was said"])[-1]
    return Found(what, FAILED if done.returncode else DONE, last)


def calibration(given: argparse.Namespace) -> Iterator[Found]:
    """The device measured by one command, and its file read."""
    from costmodel import load

    with TemporaryDirectory() as folder:
        path = Path(folder) / "device.json"
        found = _command(
            "calibration",
            ["calibrate", "--device", given.device, "-o", str(path), *["--quick"] * given.quick],
        )
        if found.state == FAILED:
            yield found
            return
        device = load(path).device
    figures = {
        "peak_flops": dict(device.peak_flops),
        "memory_bandwidth": device.memory_bandwidth,
        **{name: getattr(device, name) for name in ("launch_seconds", "host_seconds", "compute_efficiency")},
        **{name: getattr(device, name) for name in ("memory_efficiency", "attention_efficiency", "memory_overlap")},
    }
    told = f"{device.name}: {max(figures['peak_flops'].values()) / 1e12:.3g} TFLOP/s at most"
    yield Found("calibration", DONE, f"{told}, {device.memory_bandwidth / 1e9:.4g} GB/s", figures)


def step(given: argparse.Namespace) -> Iterator[Found]:
    """A training step beside PyTorch by hand, and the memory that it takes."""
    from benchmarks.gpu_step import CPU, ENGINE, GPU, step_times

    figures = step_times(_named(given.device), CPU if given.device == "cpu" else GPU)
    rows = (f"{name} {ms:.2f} ms ({figures['ratio'][name]:.3f})" for name, ms in figures["milliseconds"].items())
    yield Found("step", DONE, "; ".join(rows), figures)
    taken, predicted = figures["peak_bytes"], figures["predicted_peak_bytes"]
    if taken is None:
        yield Found("memory", NOT_DONE, "torch does not count the memory of CPUs")
    else:
        yield Found("memory", DONE, f"{ENGINE}: {taken} bytes beside what lies there, {predicted} predicted in all")


CHECKS: dict[str, Check] = {
    "operators": operators,
    "programs": programs,
    "nccl": nccl,
    "compiled": compiled,
    "xla": xla,
    "calibration": calibration,
    "step": step,
}


def _named(device: str) -> str:
    """Torch's name of the device."""
    return "cpu" if device == "cpu" else "cuda:0"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default=",".join(CHECKS), help="checks, with commas")
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks that share the device, with commas")
    parser.add_argument("--quick", action="store_true", help="fewer models and figures")
    parser.add_argument("--json", action="store_true", help="what was found as JSON instead of lines")
    given = parser.parse_args(arguments)
    given.only = given.only.split(",")
    unknown = [one for one in given.only if one not in CHECKS]
    if unknown:
        parser.error(f"no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    try:
        given.ranks = [int(one) for one in given.ranks.split(",")]
    except ValueError:
        parser.error(f"--ranks takes numbers with commas, not {given.ranks!r}")
    if min(given.ranks) < 1:
        parser.error("a run has at least 1 rank")
    return given


def found_of(given: argparse.Namespace) -> Iterator[Found]:
    """What becomes of each check; one that fails does not keep the others from being done."""
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        why = "torch sees no CUDA device; --device cpu runs the same code on CPUs"
        yield from (Found(name, NOT_DONE, why) for name in given.only)
        return
    for name in given.only:
        try:
            yield from CHECKS[name](given)
        except NotDone as error:
            yield Found(name, NOT_DONE, str(error))
        except Exception as error:  # whatever is wrong is what the script is for
            traceback.print_exc()
            yield Found(name, FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}")


def main(arguments: Sequence[str]) -> int:
    given, found = parse(arguments), []
    for one in found_of(given):
        found.append(one)
        if not given.json:
            print(f"{one.check:<28} {one.state:<9} {one.told}", flush=True)
    if given.json:
        print(json.dumps([asdict(one) for one in found]))
    return int(any(one.state == FAILED for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
