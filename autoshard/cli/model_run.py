"""`autoshard run SCRIPT.py:NAME`: the launching process loads, plans and writes the model down; each rank runs it.

So a script, and what it imports, is loaded once, not by every rank.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.api import Planned, plan
from autoshard.cli.module_run import SEED, differences, random_inputs, told
from autoshard.cli.target import TargetError, load_target
from autoshard.communication import get_rank
from autoshard.context import set_auto_parallel_context
from autoshard.frontends.torch.export import seed_torch
from autoshard.ir.graph import DATA
from autoshard.layout.mesh import Mesh
from autoshard.trace.evaluate import evaluate
from autoshard.trace.structure import flatten, unflatten


@dataclass(frozen=True)
class Prepared:
    """What ranks are given: the plan, inputs, and what to compare outputs with (None: nothing), which `whose` names."""

    planned: Planned
    inputs: tuple
    wanted: list[np.ndarray] | None
    whose: str


def prepare(target: str, mesh: Mesh, search: str | None, check: bool, folder: Path) -> Path:
    """Plan the model of a target and write it to a file in `folder`; the file.

    A PyTorch model (of a step of training the loss) is compared with what PyTorch returns, any other with its own
    unsplit run. A model without example inputs gets seeded random ones.

    Raises:
        TargetError: a target that leads to no model.
        AutoshardError: what planning it finds wrong.
    """
    # A script may ask how many devices there are while it is loaded.
    set_auto_parallel_context(device_num=mesh.devices)
    seed_torch(SEED)  # models that draw their own weights draw the same in every run
    model, inputs = load_target(target)
    planned = plan(model, inputs, mesh, search=search)
    inputs = _inputs(planned, model, inputs)
    in_torch = hasattr(model, "reference")
    wanted = None
    if check:
        wanted = model.reference() if in_torch else _whole(planned, inputs)
    whose = "PyTorch's result" if in_torch else "the unsplit run"
    planned.program  # noqa: B018  (worked out once, here)
    path = folder / "prepared.pickle"
    path.write_bytes(pickle.dumps(Prepared(planned, inputs, wanted, whose)))
    return path


def run_prepared(path: Path) -> int:
    """Run what was prepared on the ranks that are there; the exit code: 1 if outputs differ from those wanted."""
    prepared: Prepared = pickle.loads(path.read_bytes())
    outputs = arrays_in(prepared.planned.run(*prepared.inputs))
    if get_rank():
        return 0
    print(told(prepared.planned, outputs))
    if prepared.wanted is None:
        return 0
    different = differences(outputs, prepared.wanted)
    for line in different:
        print(f"differs from {prepared.whose}: {line}", file=sys.stderr)
    if not different:
        print(f"equal to {prepared.whose}")
    return 1 if different else 0


def _inputs(planned: Planned, model: Any, inputs: tuple) -> tuple:
    """The example inputs, those that come with the model, or random ones."""
    if inputs:
        return inputs
    if hasattr(model, "example_arrays"):
        return model.example_arrays
    arrays = random_inputs(planned.graph, SEED)
    data = [array for array, role in zip(arrays, planned.graph.roles, strict=True) if role == DATA]
    return tuple(unflatten(planned.traced.arguments, data))


def _whole(planned: Planned, inputs: tuple) -> list[np.ndarray]:
    """The outputs of the unsplit run; nothing is updated."""
    traced = planned.traced
    return arrays_in(traced.unpack(evaluate(traced.graph, traced.inputs(*inputs))))


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

    sys.exit(model_run.run_prepared(Path(sys.argv[1])))
