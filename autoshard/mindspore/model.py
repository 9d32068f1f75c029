"""Model: train, evaluate and apply a network under the settings of the context, on all ranks.

    optimizer = Momentum(net.trainable_params(), 0.01, 0.9)
    model = Model(net, loss_fn=SoftmaxCrossEntropyWithLogits(), optimizer=optimizer)
    model.train(3, dataset, callbacks=[LossMonitor()])

Each signature of data (shapes and types) is traced and planned once, with the strategies that the network
then has.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.api import Planned, plan_traced, without_annotations
from autoshard.core.tensortype import type_of
from autoshard.layout.mesh import Mesh
from autoshard.mindspore.callbacks import Callback, Progress, TrainingError, as_callbacks
from autoshard.mindspore.communication import get_group_size, get_rank
from autoshard.mindspore.context import (
    FULL_BATCH,
    GRAPH_MODE,
    DatasetStrategy,
    ParallelMode,
    ParallelSettings,
    Settings,
    parallel_settings,
    settings,
)
from autoshard.mindspore.dataset import Row
from autoshard.mindspore.feed import Feed
from autoshard.mindspore.resume import Position, TrainingState
from autoshard.runtime.comm import Comm
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import default_comm
from autoshard.runtime.session import Session
from autoshard.trace.arguments import check_count
from autoshard.trace.function import Traced, trace
from autoshard.trace.structure import flatten
from autoshard.transform.train import train_step
from autoshard.util.errors import ContextError
from costmodel import format_count, preset

MAX_DUMPED_RANKS = 64
"""Ranks that one process dumps; beyond that only rank 0's files are written."""


class Model:
    """A network with its loss and optimizer.

    Args:
        network: a Cell; without loss_fn its result is the loss.
        loss_fn: takes (network's result, label). The objective is the sum of what it returns; the loss that
            callbacks see is the mean over its elements.
        optimizer: of autoshard.nn, over the network's parameters.
    """

    def __init__(self, network: Any, loss_fn: Callable | None = None, optimizer: Any = None) -> None:
        self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
        self._sessions: dict[tuple, Session] = {}
        self._active: Session | None = None
        self._latest: tuple[tuple, Session] | None = None
        self._position = Position()

    def train(
        self,
        epoch: int,
        train_dataset: Any,
        callbacks: Callback | Sequence[Callback] | None = None,
        dataset_sink_mode: bool = False,
        resume: bool = False,
    ) -> None:
        """Run through the dataset `epoch` times, a step per row; then the cells hold the trained parameters.

        Where an error ends it, the cells keep what they held at the last `sync`.

        Args:
            train_dataset: rows for (*network's inputs, label); see `dataset_strategy` of ParallelSettings for
                what part of a row each rank gives.
            dataset_sink_mode: False only; there is no device queue to fill.
            resume: go on where the loaded checkpoint was saved: epochs and steps that it has behind it count, and
                their rows are skipped.

        Raises:
            TrainingError: no optimizer, or arguments of the wrong kind.
            DataError: rows that do not fit the program, or differ between ranks where they must not.
        """
        self._check_training(epoch, dataset_sink_mode, resume)
        listeners = as_callbacks(callbacks)
        self.network.set_train(True)
        done = self._position if resume else Position()
        progress = Progress(self, done.epoch, done.step, done.total_steps)
        try:
            _tell(listeners, "on_train_begin", progress)
            for number in range(1, epoch + 1):
                if number < done.epoch:
                    for _ in train_dataset:  # A source may keep count of what it gave: it gives these rows, too.
                        pass
                    continue
                begun = done.step if number == done.epoch else 0
                progress = self._train_epoch(train_dataset, listeners, replace(progress, epoch=number, step=begun))
            self.sync()
            _tell(listeners, "on_train_end", progress)
        finally:
            self._active = None

    def eval(self, valid_dataset: Any) -> float:
        """The mean loss over the rows of the dataset; nothing is updated.

        Raises:
            DataError: no rows, or rows that do not fit.
        """
        self.sync()
        losses = []
        with _mode_of(self.network, training=False):
            for row, feed in self._rows(valid_dataset, "evaluation"):
                session = self._session("eval", feed, self._trace_loss)
                if not losses:
                    session.load()
                losses.append(session.step(feed.blocks(session.data, row)))
        if not losses:
            raise TrainingError("eval: the dataset has no rows")
        return sum(losses) / len(losses)

    def predict(self, *inputs: Any) -> Any:
        """The network's result for whole arrays, given alike on every rank."""
        self.sync()
        with _mode_of(self.network, training=False):
            key = ("predict", *self._settings_key(), _signature(inputs))
            if key not in self._sessions:
                planned = self._plan(trace(self.network, *inputs), full_batch=True)
                self._sessions[key] = Session(planned, self._comm(planned.plan.mesh))
        session = self._sessions[key]
        session.load()
        return session.call(*inputs)

    @property
    def planned(self) -> Planned | None:
        """What was planned for the last training step; None before there is one."""
        trained = [session for key, session in self._sessions.items() if key[0] == "train"]
        return trained[-1].planned if trained else None

    def sync(self) -> None:
        """Bring the parameters as they stand now, in blocks on the ranks, into the network's cells.

        All ranks must call it together. `train` does so at its end; a callback that reads parameters calls it
        before.
        """
        if self._active is not None:
            self._active.store()

    # -- checkpoints

    def save(self, directory: str | os.PathLike, keep: int = 0) -> Path:
        """Write all parameters, the optimizer's states and where training stands into a directory of checkpoints.

        While training, each rank writes its own blocks. All ranks must call it together.

        Args:
            keep: how many checkpoints stay in the directory, this one included; 0: all.

        Returns:
            the checkpoint's folder (in stand_alone, where rank 0 alone writes, on others the directory).

        Raises:
            CheckpointError: on every rank, should any fail; the checkpoints before it are whole.
        """
        comm = self._active.comm if self._active is not None else self._comm(self._mesh())
        if comm.world == 1 and get_rank():
            return Path(directory)  # Processes that train each for itself do not overwrite each other's files.
        return self._state().save(directory, comm, self._active, self._position, keep)

    def load(self, directory: str | os.PathLike, step: int | None = None, states: bool = True) -> Position:
        """Take up a checkpoint that any mesh, plan and number of ranks may have saved; where training stood then.

        Training reads just the blocks that a rank holds; a cell's values are read whole when they are asked for. All
        ranks must call it together.

        Args:
            directory: of checkpoints, whose newest (or that of `step`) is taken; one's own folder; or, with
                states=False, a plain safetensors file.
            states: False takes the network's parameters alone, to begin training anew or for inference.

        Raises:
            CheckpointError: on every rank, should any fail; nothing has been changed then.
        """
        self._position, changed = self._state().load(directory, self._comm(self._mesh()), step, states)
        if changed:
            self._sessions.clear()
            self._latest = None
        self._active = None
        return self._position

    def _state(self) -> TrainingState:
        return TrainingState((self.network, self.loss_fn), self.optimizer)

    # -- training

    def _check_training(self, epoch: int, dataset_sink_mode: bool, resume: bool) -> None:
        if self.optimizer is None:
            raise TrainingError(
                "train: the Model has no optimizer; give one, such as Momentum(net.trainable_params(), 0.01, 0.9)"
            )
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 1:
            raise TrainingError(f"train: epoch is {epoch!r}; it must be a whole number of at least 1")
        if dataset_sink_mode:
            raise TrainingError(
                "train: dataset_sink_mode=True needs a device queue, which CPU ranks have not; leave it False"
            )
        if not isinstance(resume, bool):
            raise TrainingError(
                f"train: resume is {resume!r}; it must be True or False; load(directory) takes up a checkpoint before"
            )

    def _train_epoch(self, dataset: Any, listeners: tuple[Callback, ...], progress: Progress) -> Progress:
        begun = progress.step
        for row, feed in islice(self._rows(dataset, f"epoch {progress.epoch}"), begun, None):
            session = self._activated(self._session("train", feed, self._trace_step))
            loss = session.step(feed.blocks(session.data, row))
            progress = replace(progress, step=progress.step + 1, total_steps=progress.total_steps + 1, loss=loss)
            self._position = Position(progress.epoch, progress.step, progress.total_steps)
            _tell(listeners, "on_step_end", progress)
        if not progress.step:
            raise TrainingError(f"train: the dataset has no rows in epoch {progress.epoch}")
        if progress.step > begun:
            _tell(listeners, "on_epoch_end", progress)
        return progress

    def _activated(self, session: Session) -> Session:
        """The session, with the parameters in its blocks."""
        if session is not self._active:
            self.sync()
            session.load()
            self._active = session
        return session

    def _rows(self, dataset: Any, when: str) -> Iterator[tuple[Row, Feed]]:
        """The rows that all ranks agree on, with what feeds them."""
        mesh = self._mesh()
        feed = Feed(self._comm(mesh), mesh, _data_strategy(), getattr(dataset, "column_names", None), when)
        for row in feed.rows(dataset):
            yield row, feed

    # -- from rows to programs

    def _session(self, kind: str, feed: Feed, tracing: Callable[[Feed], Traced]) -> Session:
        now = (kind, settings(), parallel_settings(), feed.names, feed.types)
        if self._latest is not None and all(one is other for one, other in zip(now, self._latest[0], strict=True)):
            return self._latest[1]  # as in the step before: nothing was set anew, and the row is of the same kind
        session = self._found(kind, feed, tracing)
        self._latest = now, session
        return session

    def _found(self, kind: str, feed: Feed, tracing: Callable[[Feed], Traced]) -> Session:
        key = (kind, *self._settings_key(), feed.signature)
        if key not in self._sessions:
            planned = self._plan(tracing(feed))
            self._sessions[key] = Session(planned, feed.comm)
            if kind == "train":
                self._dump(planned, feed.comm)
        return self._sessions[key]

    def _settings_key(self) -> tuple[Settings, ParallelSettings]:
        if settings().mode != GRAPH_MODE:
            raise ContextError(
                "Model runs whole graphs: set_context(mode=GRAPH_MODE). "
                "For eager computing call the cells on arrays directly"
            )
        return settings(), parallel_settings()

    def _trace_step(self, feed: Feed) -> Traced:
        return train_step(self._objective(feed.names), self.optimizer, *feed.types).traced

    def _trace_loss(self, feed: Feed) -> Traced:
        return trace(self._objective(feed.names), *feed.types)

    def _objective(self, names: Sequence[str]) -> Callable:
        """A function from a row to the loss, whose arguments are called like the columns."""

        def objective(*columns: Any) -> Any:
            if self.loss_fn is None:
                return self.network(*columns)
            *inputs, label = columns
            columns_told = format_count(len(columns), "column")
            check_count(self.network, len(inputs), f"a row of the dataset has {columns_told}, the last is the label")
            return self.loss_fn(self.network(*inputs), label)

        objective.__name__ = type(self.network).__name__.lower()
        if all(name.isidentifier() for name in names) and len(set(names)) == len(names):
            kind = inspect.Parameter.POSITIONAL_ONLY
            objective.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
        return objective

    def _plan(self, traced: Traced, full_batch: bool = False) -> Planned:
        parallel = parallel_settings()
        mode = parallel.parallel_mode
        searches = {
            ParallelMode.AUTO_PARALLEL: parallel.search_mode,
            ParallelMode.STAND_ALONE: "sharding_propagation",
        }
        if mode in (ParallelMode.STAND_ALONE, ParallelMode.DATA_PARALLEL):
            traced = without_annotations(traced)
        strategy = FULL_BATCH if full_batch else _data_strategy()
        search, hardware, limit = searches.get(mode, "batch"), preset(parallel.hardware), settings().max_device_memory
        return plan_traced(traced, self._mesh(), search, hardware, strategy, limit)

    def _mesh(self) -> Mesh:
        parallel = parallel_settings()
        if parallel.parallel_mode == ParallelMode.STAND_ALONE:
            return Mesh.flat(1)
        return parallel.mesh or Mesh.flat(parallel.device_num or get_group_size())

    def _comm(self, mesh: Mesh) -> Comm:
        """In stand_alone each process trains for itself."""
        alone = parallel_settings().parallel_mode == ParallelMode.STAND_ALONE
        return LocalComm(1) if alone else default_comm(mesh.devices)

    def _dump(self, planned: Planned, comm: Comm) -> None:
        # Processes that train each for itself do not overwrite each other's files.
        if not settings().save_graphs or comm.world == 1 and get_rank():
            return
        ranks = comm.ranks if comm.world <= MAX_DUMPED_RANKS else comm.ranks[:1]
        planned.dump(settings().save_graphs_path, ranks)


def _data_strategy() -> DatasetStrategy:
    parallel = parallel_settings()
    return FULL_BATCH if parallel.parallel_mode == ParallelMode.STAND_ALONE else parallel.dataset_strategy


def _tell(listeners: tuple[Callback, ...], what: str, progress: Progress) -> None:
    for one in listeners:
        getattr(one, what)(progress)


@contextmanager
def _mode_of(network: Any, training: bool) -> Iterator[None]:
    """Switch the network to training or back for a while."""
    before = network.training
    network.set_train(training)
    try:
        yield
    finally:
        network.set_train(before)


def _signature(inputs: Any) -> tuple:
    """The types of the arrays among nested arguments, hashable."""
    leaves, structure = flatten(inputs, lambda part: hasattr(part, "dtype"))
    return repr(structure), tuple(str(type_of(np.asarray(one))) for _, one in leaves)
