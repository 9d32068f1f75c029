"""`autoshard run --save` and `--resume`: the parameters of a model as a checkpoint that any other run of it takes up.

What ranks hold they write themselves, in whatever stages, mesh or plan; a run reads what its own ranks hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autoshard.api import Planned
from autoshard.pipeline.execute.training import StagedSession
from autoshard.pipeline.planning import PlannedPipeline
from autoshard.runtime.checkpoint import STATES, Reader, check_names, open_source, save
from autoshard.runtime.local import LocalComm
from autoshard.runtime.stored import Stored
from autoshard.trace.loss_scale import OptimizerState
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import CheckpointError


def take_up(planned: Planned | PlannedPipeline, directory: Path) -> int:
    """Give all parameters the values of a directory's newest checkpoint, read when they are used; its step.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of another model; nothing has been changed then.
    """
    named = parameters_of(planned)
    reader = open_source(directory.resolve(), LocalComm(1), None, lambda found: _check(found, named))
    for name, parameter in named.items():
        parameter.data = Stored(reader, name)
    return reader.index.step


def _check(reader: Reader, named: Mapping[str, Parameter]) -> None:
    index = reader.index
    check_names(index, named, index.metadata.get(STATES, ()))
    for name, parameter in named.items():
        if index.tensors[name].type != parameter.type:
            raise CheckpointError(
                f"{name} is {index.tensors[name].type} in the checkpoint, the model has {parameter.type}"
            )


def keep(planned: Planned | PlannedPipeline, directory: Path, step: int) -> Path:
    """Write all parameters, as they stand after a run, into a directory of checkpoints; the checkpoint's folder.

    All ranks call it together, and each writes its own blocks.

    Raises:
        CheckpointError: on every rank, should any fail.
    """
    named = parameters_of(planned)
    if isinstance(planned, Planned):
        session = planned.session
    else:
        session = StagedSession(planned, planned.session.comm, planned.session)
    session.load()
    held = dict(session.blocks())
    arrays = {name: held[one] for name, one in named.items()}
    states = [name for name, one in named.items() if isinstance(one, OptimizerState)]
    return save(directory, arrays, session.comm, step, {STATES: states})


def parameters_of(planned: Planned | PlannedPipeline) -> dict[str, Parameter]:
    """The parameters by the names that they had when the model was traced.

    Raises:
        CheckpointError: there are none, or two of one name.
    """
    found: dict[str, Parameter] = {}
    for value, one in planned.traced.parameters.items():
        if found.setdefault(value.name, one) is not one:
            raise CheckpointError(f"two parameters are called {value.name!r}; rename one")
    if not found:
        raise CheckpointError(f"{planned.graph.name!r} has no parameters to save or to resume")
    return found
