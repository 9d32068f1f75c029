"""Model: train, evaluate and apply a network under the settings of the context, on all ranks.

    optimizer = Momentum(net.trainable_params(), 0.01, 0.9)
    model = Model(net, loss_fn=SoftmaxCrossEntropyWithLogits(), optimizer=optimizer)
    model.train(3, dataset, callbacks=[LossMonitor()])

Each signature of data (shapes and types) is traced and planned once, with the strategies that the network
then has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from autoshard.api import Planned
from autoshard.engines.executors import check_engine_device
from autoshard.engines.session import Session
from autoshard.layout.mesh import Mesh
from autoshard.mindspore.algo_parameters import algorithm
from autoshard.mindspore.callbacks import Callback, Progress, TrainingError, Validation, as_callbacks
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
from autoshard.mindspore.feed import Feed, named_columns, signature
from autoshard.mindspore.gradient_scale import gradient_scale
from autoshard.mindspore.metrics import Loss, metrics_of
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.mindspore.planning import layout_summary, planned_as_set
from autoshard.mindspore.resume import Position, TrainingState
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Parts
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import default_comm
from autoshard.search.algo_parameters import SearchParameters
from autoshard.trace.arguments import check_count
from autoshard.trace.cell import recomputed
from autoshard.trace.function import Traced, trace
from autoshard.transform.train import train_step
from autoshard.util.errors import ContextError
from costmodel import format_count

MAX_DUMPED_RANKS = 64
"""Ranks that one process dumps; beyond that only rank 0's files are written."""


class Model:
    """A network with its loss and optimizer; MindSpore's further arguments can only be what they are by default.

    Args:
        network: a Cell; without loss_fn its result is the loss.
        loss_fn: takes (network's result, label). The objective is the sum of what it returns; the loss that
            callbacks see is the mean over its elements.
        optimizer: of autoshard.mindspore.nn, over the network's parameters.
        metrics: what `eval` tells: a set of names, such as {"accuracy", "loss"}, or a dict of metrics by name.
    """

    def __init__(
        self,
        network: Any,
        loss_fn: Callable | None = None,
        optimizer: Any = None,
        metrics: Any = None,
        eval_network: Any = None,
        eval_indexes: Any = None,
        amp_level: str = "O0",
        boost_level: str = "O0",
    ) -> None:
        if (eval_network, eval_indexes, amp_level, boost_level) != (None, None, "O0", "O0"):
            raise TrainingError(
                "Model: eval_network, eval_indexes, amp_level and boost_level are not offered; leave them out"
            )
        self.metrics = metrics_of(metrics)
        self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
        self._sessions: dict[tuple, Session[Planned]] = {}
        self._active: Session | None = None
        self._latest: tuple[tuple, Session] | None = None
        self._position = Position()
        self._engine, self._device = "numpy", "auto"

    def train(
        self,
        epoch: int,
        train_dataset: Any,
        callbacks: Callback | Sequence[Callback] | None = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        resume: bool = False,
        engine: str = "numpy",
        device: str = "auto",
    ) -> None:
        """Run through the dataset `epoch` times, a step per row; then the cells hold the trained parameters.

        Where an error ends it, the cells keep what they held at the last `sync`.

        Args:
            train_dataset: rows for (*network's inputs, label); see `dataset_strategy` of ParallelSettings for
                what part of a row each rank gives.
            dataset_sink_mode: False only; there is no device queue to fill. `sink_size` makes no difference then.
            initial_epoch: how many epochs count as done.
            resume: go on where the loaded checkpoint was saved: epochs and steps that it has behind it count, and
                their rows are skipped.
            engine: what runs the steps, as of `Planned.run`.
            device: what ranks of the engine torch compute on, as of `Planned.run`.

        Raises:
            TrainingError: no optimizer, or arguments of the wrong kind.
            UnknownNameError: there is no such engine, or device.
            DataError: rows that do not fit the program, or differ between ranks where they must not.
        """
        self._check_training(epoch, dataset_sink_mode, resume)
        check_engine_device(engine, device)
        self._engine, self._device = engine, device
        listeners = as_callbacks(callbacks)
        self.network.set_train(True)
        if not 0 <= initial_epoch < epoch:
            raise TrainingError(f"train: initial_epoch is {initial_epoch!r}; it is at least 0 and below epoch {epoch}")
        done = self._position if resume else Position()
        progress = Progress(self, done.epoch, done.step, done.total_steps)
        try:
            _tell(listeners, "on_train_begin", progress)
            for number in range(1 + initial_epoch, epoch + 1):
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

    def fit(
        self,
        epoch: int,
        train_dataset: Any,
        valid_dataset: Any = None,
        valid_frequency: int | Sequence[int] = 1,
        callbacks: Callback | Sequence[Callback] | None = None,
        dataset_sink_mode: bool = False,
        valid_dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
    ) -> None:
        """`train`, and `eval` after each `valid_frequency`-th epoch, or after those that it lists.

        Raises:
            TrainingError: nothing to evaluate with; and as `train`.
        """
        listeners = list(as_callbacks(callbacks))
        if valid_dataset is not None:
            if not self.metrics:
                raise TrainingError("fit: the Model has no metrics; give it some, such as metrics={'accuracy'}")
            listeners.append(Validation(valid_dataset, valid_frequency))
        self.train(epoch, train_dataset, listeners, dataset_sink_mode, sink_size, initial_epoch)

    def eval(self, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False) -> Any:
        """What the metrics come to over the rows of the dataset, by name; of a Model without, the mean loss.

        Nothing is updated.

        Raises:
            DataError: no rows, or rows that do not fit.
        """
        self._no_sink(dataset_sink_mode, "eval")
        self.sync()
        losses: list[float] = []
        for metric in self.metrics.values():
            metric.clear()
        with _mode_of(self.network, training=False):
            for row, feed in self._rows(valid_dataset, "evaluation"):
                session = self._session("eval", feed, self._trace_results if self.metrics else self._trace_loss)
                if not losses:
                    session.load()
                losses.append(self._evaluated(session, feed.blocks(session.data, row)))
        if not losses:
            raise TrainingError("eval: the dataset has no rows")
        if self.metrics:
            return {name: metric.eval() for name, metric in self.metrics.items()}
        return sum(losses) / len(losses)

    def _evaluated(self, session: Session, blocks: list[Parts]) -> float:
        """The loss of a row, of which the metrics take note."""
        if not self.metrics:
            return session.step(blocks)
        found = session.results(blocks)
        for metric in self.metrics.values():
            alone = isinstance(metric, Loss) and self.loss_fn is not None
            metric.update(*((found[0],) if alone else found[1:] if self.loss_fn is not None else found))
        return 0.0

    def build(
        self,
        train_dataset: Any = None,
        valid_dataset: Any = None,
        sink_size: int = -1,
        epoch: int = 1,
        sink_mode: bool = True,
    ) -> None:
        """Trace and plan the steps for the datasets' first rows, without running any.

        Raises:
            TrainingError: no dataset, or none to train with without an optimizer.
        """
        if train_dataset is None and valid_dataset is None:
            raise TrainingError("build: give train_dataset, valid_dataset or both")
        if train_dataset is not None:
            self._check_training(epoch, False, False)
            self.network.set_train(True)
            self._prepared("train", train_dataset, self._trace_step)
        if valid_dataset is not None:
            with _mode_of(self.network, training=False):
                self._prepared("eval", valid_dataset, self._trace_results if self.metrics else self._trace_loss)

    def _prepared(self, kind: str, dataset: Any, tracing: Callable[[Feed], Traced]) -> Session[Planned]:
        for _, feed in self._rows(dataset, kind):
            return self._session(kind, feed, tracing)
        raise TrainingError(f"{kind}: the dataset has no rows")

    def infer_train_layout(
        self, train_dataset: Any, dataset_sink_mode: bool = True, sink_size: int = -1
    ) -> dict[str, tuple]:
        """How parameters and states lie in training: by name what `layout_summary` says. Nothing is run."""
        self._check_training(1, False, False)
        self.network.set_train(True)
        return layout_summary(self._prepared("train", train_dataset, self._trace_step).planned)

    def infer_predict_layout(self, *predict_data: Any, skip_backend_compile: bool = False) -> dict[str, tuple]:
        """How parameters lie when `predict` is called with such data: by name what `layout_summary` says."""
        with _mode_of(self.network, training=False):
            return layout_summary(self._predicting(predict_data).planned)

    def predict(self, *predict_data: Any) -> Any:
        """The network's result for whole arrays, given alike on every rank."""
        self.sync()
        with _mode_of(self.network, training=False):
            session = self._predicting(predict_data)
        session.load()
        return as_tensors(session.call(*predict_data))

    def _predicting(self, inputs: tuple[Any, ...]) -> Session[Planned]:
        key = ("predict", *self._settings_key(), signature(inputs))
        if key not in self._sessions:
            planned = self._plan(trace(self.network, *inputs), full_batch=True)
            self._sessions[key] = Session(planned, self._comm(planned.plan.mesh))
        return self._sessions[key]

    def train_once(self, *columns: Any) -> float:
        """One step on one row; the cells hold the new parameters. The loss, the mean over its elements."""
        self._check_training(1, False, False)
        self.network.set_train(True)
        for row, feed in self._rows([columns], "a step"):
            session = self._activated(self._session("train", feed, self._trace_step))
            loss = session.step(feed.blocks(session.data, row))
            self.sync()
            return loss
        raise TrainingError("train_once: no row")

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
        self._no_sink(dataset_sink_mode, "train")
        if not isinstance(resume, bool):
            raise TrainingError(
                f"train: resume is {resume!r}; it must be True or False; load(directory) takes up a checkpoint before"
            )

    @staticmethod
    def _no_sink(dataset_sink_mode: bool, what: str) -> None:
        if dataset_sink_mode:
            raise TrainingError(
                f"{what}: dataset_sink_mode=True needs a device queue, which CPU ranks have not; leave it False"
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

    def _activated(self, session: Session) -> Session[Planned]:
        """The session, with the parameters in its blocks."""
        if session is not self._active:
            self.sync()
            session.load()
            self._active = session
        return session

    def _rows(self, dataset: Any, when: str) -> Iterator[tuple[Row, Feed]]:
        """The rows that all ranks agree on, with what feeds them."""
        mesh = self._mesh()
        feed = Feed(self._comm(mesh), mesh, self._data_strategy(), getattr(dataset, "column_names", None), when)
        for row in feed.rows(dataset):
            yield row, feed

    # -- from rows to programs

    def _session(self, kind: str, feed: Feed, tracing: Callable[[Feed], Traced]) -> Session[Planned]:
        now = (kind, settings(), self._parallel, feed.names, feed.types, self._engine, self._device)
        if self._latest is not None and all(one is other for one, other in zip(now, self._latest[0], strict=True)):
            return self._latest[1]  # as in the step before: nothing was set anew, and the row is of the same kind
        session = self._found(kind, feed, tracing)
        self._latest = now, session
        return session

    def _found(self, kind: str, feed: Feed, tracing: Callable[[Feed], Traced]) -> Session[Planned]:
        where = (self._engine, self._device) if kind == "train" else ("numpy", "auto")
        key = (kind, *self._settings_key(), feed.signature, *where)
        if key not in self._sessions:
            planned = self._plan(tracing(feed))
            self._sessions[key] = Session(planned, feed.comm, *where)
            if kind == "train":
                self._dump(planned, feed.comm)
        return self._sessions[key]

    def _settings_key(self) -> tuple[Settings, ParallelSettings, SearchParameters]:
        if settings().mode != GRAPH_MODE:
            raise ContextError(
                "Model runs whole graphs: set_context(mode=GRAPH_MODE). "
                "For eager computing call the cells on arrays directly"
            )
        return settings(), self._parallel, algorithm()

    @property
    def _parallel(self) -> ParallelSettings:
        """The settings of the context, or of a network that has its own (AutoParallel)."""
        own = getattr(self.network, "settings", None)
        return own if isinstance(own, ParallelSettings) else parallel_settings()

    def _data_strategy(self) -> DatasetStrategy:
        parallel = self._parallel
        return FULL_BATCH if parallel.parallel_mode == ParallelMode.STAND_ALONE else parallel.dataset_strategy

    def _trace_step(self, feed: Feed) -> Traced:
        scale = gradient_scale(self._parallel, self._mesh().devices, self.network, self.loss_fn)
        again, parts = recomputed(self.network), self._parallel.grad_accumulation_step
        given = (self._objective(feed.names), self.optimizer, *feed.types)
        return train_step(*given, recompute=again, gradient_scale=scale, micro_batches=parts).traced

    def _trace_results(self, feed: Feed) -> Traced:
        """The loss, what the network returns, and the label; of a network alone just what it returns."""
        if self.loss_fn is None:
            return trace(self._objective(feed.names), *feed.types)
        loss_fn, network = self.loss_fn, self.network

        def results(*columns: Any) -> Any:
            *inputs, label = columns
            found = network(*inputs)
            return loss_fn(found, label), found, label

        return trace(named_columns(results, self.network, feed.names), *feed.types)

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

        return named_columns(objective, self.network, names)

    def _plan(self, traced: Traced, full_batch: bool = False) -> Planned:
        strategy = FULL_BATCH if full_batch else self._data_strategy()
        held = (
            {} if self.optimizer is None else {one: self.optimizer.states[id(one)] for one in self.optimizer.parameters}
        )
        return planned_as_set(traced, self._mesh(), settings(), self._parallel, strategy, held)

    def _mesh(self) -> Mesh:
        parallel = self._parallel
        if parallel.parallel_mode == ParallelMode.STAND_ALONE:
            return Mesh.flat(1)
        return parallel.mesh or Mesh.flat(parallel.device_num or get_group_size())

    def _comm(self, mesh: Mesh) -> Comm:
        """In stand_alone each process trains for itself."""
        alone = self._parallel.parallel_mode == ParallelMode.STAND_ALONE
        return LocalComm(1) if alone else default_comm(mesh.devices)

    def _dump(self, planned: Planned, comm: Comm) -> None:
        # Processes that train each for itself do not overwrite each other's files.
        if not settings().save_graphs or comm.world == 1 and get_rank():
            return
        ranks = comm.ranks if comm.world <= MAX_DUMPED_RANKS else comm.ranks[:1]
        planned.dump(settings().save_graphs_path, ranks)


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
