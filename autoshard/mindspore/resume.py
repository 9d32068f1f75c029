"""What a checkpoint of training holds, and how training takes it up: parameters, the optimizer's states, random seeds,
and where training stood.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoshard.engines.session import Session
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.ops.primitive import Primitive
from autoshard.pipeline.execute.training import StagedSession
from autoshard.runtime.checkpoint import STATES, LocalBlocks, Placed, Reader, check_names, open_source, save
from autoshard.runtime.comm import Comm
from autoshard.runtime.stored import Stored
from autoshard.trace.loss_scale import LossScale
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import CheckpointError

_TRAINING, _RANDOM = "training", "random"


@dataclass(frozen=True)
class Position:
    """Where training stood: the epoch, the step in it, and all steps so far; zeros before the first step."""

    epoch: int = 0
    step: int = 0
    total_steps: int = 0


class TrainingState:
    """All that training changes, by name: of cells (a network, a loss) their parameters, of the optimizer its states,
    and what a loss scale changes.

    Raises:
        CheckpointError: two things of one name.
    """

    def __init__(self, cells: Iterable[Any], optimizer: Any = None, scaling: LossScale | None = None) -> None:
        self.cells = tuple(cell for cell in cells if hasattr(cell, "parameters_dict"))
        self.parameters: dict[str, Parameter] = {}
        self.states: dict[str, Parameter] = {}
        for cell in self.cells:
            _add(self.parameters, cell.parameters_dict())
        if optimizer is not None:
            _add(self.parameters, {one.name: one for one in optimizer.parameters})
            _add(self.states, optimizer.parameters_dict())
        if scaling is not None:
            _add(self.states, {one.name: one for one in scaling.parameters})
        _add(dict(self.parameters), self.states)

    @property
    def named(self) -> dict[str, Parameter]:
        return {**self.parameters, **self.states}

    def save(
        self,
        directory: str | os.PathLike,
        comm: Comm,
        session: Session | StagedSession | None,
        at: Position,
        keep: int = 0,
    ) -> Path:
        """Write a checkpoint, from the blocks of the session that trains where there is one; its folder.

        Raises:
            CheckpointError: it cannot be written, or the session trains what none of the cells owns.
        """
        blocks = dict(session.blocks()) if session is not None else {}
        mesh = session.program.mesh if isinstance(session, Session) else Mesh.flat(comm.world)
        named = self.named
        lost = sorted(one.name for one in blocks.keys() - set(named.values()))
        if lost:
            raise CheckpointError(f"{', '.join(lost)}: parameters that belong neither to the network nor to the loss")
        arrays = {name: blocks.get(one) or _whole(one, mesh, comm) for name, one in named.items()}
        metadata = {STATES: list(self.states), _TRAINING: asdict(at), _RANDOM: dict(self._seeds())}
        return save(directory, arrays, comm, at.total_steps, metadata, keep)

    def load(
        self, directory: str | os.PathLike, comm: Comm, step: int | None = None, states: bool = True
    ) -> tuple[Position, bool]:
        """Give all parameters the values of a checkpoint, which are read when they are used.

        Args:
            states: False leaves the optimizer as it is, and takes the parameters alone.

        Returns:
            where training stood, and whether random seeds have changed, so that what was traced is out of date.

        Raises:
            CheckpointError: no checkpoint, a cut one, or one of another model; nothing has been changed then.
        """
        wanted = self.named if states else self.parameters
        reader = open_source(directory, comm, step, lambda found: self._check(found, wanted, states))
        for name, one in wanted.items():
            one.data = Stored(reader, name)
        metadata = reader.index.metadata
        if not states or _TRAINING not in metadata:
            return Position(), False
        seeds = metadata[_RANDOM]
        changed = dict(self._seeds()) != seeds
        for name, primitive in self._random():
            primitive.attrs["seed"] = seeds[name]
        return Position(**metadata[_TRAINING]), changed

    def _check(self, reader: Reader, wanted: Mapping[str, Parameter], states: bool) -> None:
        index = reader.index
        check_names(index, wanted, () if states else index.metadata.get(STATES, ()))
        for name, one in wanted.items():
            saved = index.tensors[name].type
            if saved != one.type:
                raise CheckpointError(f"{name} is {saved} in the checkpoint, the network has {one.type}")
        seeds = index.metadata.get(_RANDOM)
        if states and seeds is not None and set(seeds) != {name for name, _ in self._random()}:
            raise CheckpointError(
                f"the checkpoint is of another model: random numbers are drawn by {_listed(seeds)} there, by "
                f"{_listed(name for name, _ in self._random())} here"
            )

    def _seeds(self) -> Iterator[tuple[str, int]]:
        return ((name, primitive.attrs["seed"]) for name, primitive in self._random())

    def _random(self) -> Iterator[tuple[str, Primitive]]:
        """The operators of the cells that draw random numbers, by their paths."""
        for i, cell in enumerate(self.cells):
            for path, inner in cell.cells_and_names():
                for label, part in vars(inner).items():
                    if isinstance(part, Primitive) and "seed" in part.attrs:
                        yield ".".join(word for word in (f"loss{i}" if i else "", path, label) if word), part


def _add(into: dict[str, Parameter], named: Mapping[str, Parameter]) -> None:
    for name, one in named.items():
        if into.setdefault(name, one) is not one:
            raise CheckpointError(f"two parameters are called {name!r}: {into[name]} and {one}; rename one")


def _whole(one: Parameter, mesh: Mesh, comm: Comm) -> LocalBlocks:
    """A parameter that is in no session: rank 0 writes it."""
    placed = Placed(one.type, Layout.replicated(mesh, one.type.rank))
    return LocalBlocks([one.asnumpy()] * len(comm.ranks), placed)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
