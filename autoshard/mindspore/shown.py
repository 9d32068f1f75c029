"""Parameters outside of steps: what is read is what the last step left, what is written is trained on.

While a model trains, its parameters lie in blocks on the ranks, and cells hold older values. For a callback that is not
one of autoshard's (`shown`), each trained parameter points to the session instead: asked for its values, the session
brings all of them together. Where each rank is a process, all have to do that together, which `Model.sync` says.
Between steps that are called one by one cells have all values (`Cells`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from autoshard.mindspore.callbacks import TrainingError
from autoshard.runtime.agree import from_all
from autoshard.runtime.comm import Comm
from autoshard.trace.initializer import Deferred
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import at
from autoshard.util.source import caller


class HoldsParameters(Protocol):
    """A session of training."""

    planned: Any
    traced: Any
    comm: Comm

    def load(self) -> None: ...

    def store(self) -> None: ...


class InTraining(Deferred):
    """The values of a parameter that are in a session; `before` are those that its cell had until then."""

    def __init__(self, parameter: Parameter, session: HoldsParameters) -> None:
        super().__init__(parameter.type, self._whole)
        self.parameter, self.session = parameter, session
        self.before = parameter.pending or parameter.data

    def _whole(self) -> np.ndarray:
        comm = self.session.comm
        if len(comm.ranks) < comm.world:
            raise TrainingError(
                f"{self.parameter.name} is read{at(caller(installed=False))} while it is trained in blocks on "
                f"{comm.world} ranks; call run_context.model.sync() before, on all ranks"
            )
        self.session.store()
        if self.parameter.pending is self:  # No step has been done since its cell had these.
            self.parameter.data = self.before
        return self.parameter.data


@contextmanager
def shown(session: HoldsParameters, heard: bool) -> Iterator[None]:
    """Let callbacks read and write what is trained, where any of them is the user's own (`heard`)."""
    if not heard:
        yield
        return
    known, graph = session.traced.parameters, session.planned.graph
    updated = {graph.inputs[into] for into in graph.updates.values()}
    pointers = [(one, InTraining(one, session)) for value, one in known.items() if value in updated]
    for one, pointer in pointers:
        one.data = pointer
    before = [(one, _values(one)) for one in known.values()]
    try:
        yield
        _take_back(session, [one for one, values in before if _values(one) is not values])
    finally:
        for one, pointer in pointers:
            if one.pending is pointer:
                one.data = pointer.before


def _take_back(session: HoldsParameters, touched: list[Parameter]) -> None:
    """Go on with what callbacks wrote: where a rank has read or written any, all take the values of the first."""
    if not any(from_all(session.comm, "touched" if touched else "")):
        return
    values = [one.data for one in touched]
    session.store()
    for one, array in zip(touched, values, strict=True):
        one.set_data(array)
    session.load()


class Cells:
    """What the parameters' cells hold after a step of a session that has brought its values into them."""

    def __init__(self, session: HoldsParameters) -> None:
        self._comm = session.comm
        self._held = [(one, _values(one)) for one in session.traced.parameters.values()]

    def have_changed(self) -> bool:
        """Whether something else has written to them since: the user, or a step of another model that has them, too.
        Ranks call it together: they all agree."""
        changed = any(_values(one) is not values for one, values in self._held)
        return any(from_all(self._comm, "changed" if changed else ""))


def _values(one: Parameter) -> np.ndarray | Deferred:
    """The values as they are kept, which are not made if they were not."""
    return one.pending or one.data
