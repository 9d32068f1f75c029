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
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from autoshard.api import Planned
from autoshard.engines.executors import check_engine_device
from autoshard.mindspore.callbacks import Callback, Progress, TrainingError, Validation, as_callbacks, hears_begins
from autoshard.mindspore.communication import get_rank
from autoshard.mindspore.context import settings
from autoshard.mindspore.loss_scale import BY_LEVEL, scale_of
from autoshard.mindspore.metrics import Loss, metrics_of
from autoshard.mindspore.mixed_precision import level_for, mixed
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.mindspore.planning import layout_summary
from autoshard.mindspore.resume import Position, TrainingState
from autoshard.mindspore.sessions import LOSS, RESULTS, TRAIN, AnySession, Sessions
from autoshard.mindspore.shown import Cells, shown
from autoshard.pipeline.planning import PlannedPipeline


class Model:
    """A network with its loss and optimizer; MindSpore's further arguments can only be what they are by default.

    Args:
        network: a Cell; without loss_fn its result is the loss. Of a TrainOneStepCell its network, optimizer and scale
            are taken.
        loss_fn: takes (network's result, label). The objective is the sum of what it returns; the loss that
            callbacks see is the mean over its elements.
        optimizer: of autoshard.mindspore.nn, over the network's parameters.
        metrics: what `eval` tells: a set of names, such as {"accuracy", "loss"}, or a dict of metrics by name.
        amp_level: which cells of the network compute in float16, see `mixed_precision`; with O2 and O3 the loss is
            given float32, and O2 has a `DynamicLossScaleManager()` unless one is given. "auto" is O2 where the
            context's device_target is "GPU", and O3 for "Ascend".
        loss_scale_manager: how the loss is scaled, see `loss_scale`.
        keep_batchnorm_fp32: whether norms stay in float32 where the network is cast; by default as the level says.
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
        *,
        loss_scale_manager: Any = BY_LEVEL,
        keep_batchnorm_fp32: bool | None = None,
    ) -> None:
        if (eval_network, eval_indexes, boost_level) != (None, None, "O0"):
            raise TrainingError("Model: eval_network, eval_indexes and boost_level are not offered; leave them out")
        if not callable(network):
            raise TrainingError(f"Model: network is {network!r}; it is a Cell")
        level = level_for(amp_level, settings().device_target, "Model: amp_level")
        self.widens = mixed(network, level, keep_batchnorm_fp32)
        self.scaling = scale_of(level, loss_scale_manager)
        self.own_step: Callable | None = None  # a step that takes its gradients itself, from data to the loss
        step = getattr(network, "model", None)
        if isinstance(step, Model) and loss_fn is None and optimizer is None:  # of a TrainOneStepCell
            network, optimizer, self.scaling = step.network, step.optimizer, step.scaling
            self.own_step = step.own_step
        self.metrics = metrics_of(metrics)
        self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
        self._sessions = Sessions(self)
        self._active: AnySession | None = None
        self._cells: Cells | None = None  # what `train_once` left in the cells
        self._position = Position()

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
        self._sessions.engine, self._sessions.device = engine, device
        listeners = as_callbacks(callbacks)
        self.network.set_train(True)
        if not 0 <= initial_epoch < epoch:
            raise TrainingError(f"train: initial_epoch is {initial_epoch!r}; it is at least 0 and below epoch {epoch}")
        done = self._position if resume else Position()
        self.sync()
        self._active = None  # what has been written to the cells since counts
        progress = Progress(self, done.epoch, done.step, done.total_steps, epochs=epoch, dataset=train_dataset)
        try:
            _tell(listeners, "on_train_begin", progress)
            for number in range(1 + initial_epoch, epoch + 1):
                if number < done.epoch:
                    for _ in train_dataset:  # A source may keep count of what it gave: it gives these rows, too.
                        pass
                    continue
                begun = done.step if number == done.epoch else 0
                progress = self._train_epoch(train_dataset, listeners, replace(progress, epoch=number, step=begun))
                if progress.get_stop_requested():
                    break
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
            listeners.append(Validation(valid_dataset, valid_frequency, listeners=tuple(listeners)))
        self.train(epoch, train_dataset, listeners, dataset_sink_mode, sink_size, initial_epoch)

    def eval(self, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False) -> Any:
        """What the metrics come to over the rows of the dataset, by name; of a Model without, the mean loss.

        Nothing is updated.

        Args:
            callbacks: of which the methods with "eval" in their names are called.

        Raises:
            DataError: no rows, or rows that do not fit.
        """
        self._no_sink(dataset_sink_mode, "eval")
        self.sync()
        losses: list[float] = []
        loaded: list[AnySession] = []
        for metric in self.metrics.values():
            metric.clear()
        listeners, progress = as_callbacks(callbacks), Progress(self, epoch=1, dataset=valid_dataset, mode="eval")
        for name in ("on_eval_begin", "on_eval_epoch_begin"):
            _tell(listeners, name, progress)
        with _mode_of(self.network, training=False):
            for row, feed in self._sessions.rows(valid_dataset, "evaluation"):
                session = self._sessions.of(self._evaluation, feed)
                if session not in loaded:  # one for each size of rows
                    session.load()
                    loaded.append(session)
                progress = replace(progress, step=progress.step + 1, total_steps=progress.step + 1)
                _tell(listeners, "on_eval_step_begin", progress)
                loss, outputs = self._evaluated(session, self._sessions.given(session, feed, row))
                losses.append(loss)
                progress = replace(progress, loss=loss, outputs=outputs)
                _tell(listeners, "on_eval_step_end", progress)
        if not losses:
            raise TrainingError("eval: the dataset has no rows")
        _tell(listeners, "on_eval_epoch_end", progress)
        found: Any = sum(losses) / len(losses)
        if self.metrics:
            found = {name: metric.eval() for name, metric in self.metrics.items()}
        _tell(listeners, "on_eval_end", replace(progress, metrics=found))
        return found

    @property
    def _evaluation(self) -> str:
        return RESULTS if self.metrics else LOSS

    def _evaluated(self, session: AnySession, blocks: list) -> tuple[float, Any]:
        """The loss of a row, and what there is besides, of which the metrics take note."""
        if not self.metrics:
            return session.step(blocks), None
        found = session.results(blocks)
        for metric in self.metrics.values():
            alone = isinstance(metric, Loss) and self.loss_fn is not None
            metric.update(*((found[0],) if alone else found[1:] if self.loss_fn is not None else found))
        return 0.0, as_tensors(tuple(found))

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
            self._prepared(TRAIN, train_dataset)
        if valid_dataset is not None:
            with _mode_of(self.network, training=False):
                self._prepared(self._evaluation, valid_dataset)

    def _prepared(self, kind: str, dataset: Any) -> AnySession:
        for _, feed in self._sessions.rows(dataset, kind):
            return self._sessions.of(kind, feed)
        raise TrainingError(f"{kind}: the dataset has no rows")

    def infer_train_layout(
        self, train_dataset: Any, dataset_sink_mode: bool = True, sink_size: int = -1
    ) -> dict[str, tuple]:
        """How parameters and states lie in training: by name what `layout_summary` says. Nothing is run."""
        self._check_training(1, False, False)
        self.network.set_train(True)
        return layout_summary(self._prepared(TRAIN, train_dataset).planned)

    def infer_predict_layout(self, *predict_data: Any, skip_backend_compile: bool = False) -> dict[str, tuple]:
        """How parameters lie when `predict` is called with such data: by name what `layout_summary` says."""
        with _mode_of(self.network, training=False):
            return layout_summary(self._sessions.predicting(predict_data).planned)

    def predict(self, *predict_data: Any) -> Any:
        """The network's result for whole arrays, given alike on every rank."""
        self.sync()
        with _mode_of(self.network, training=False):
            session = self._sessions.predicting(predict_data)
        session.load()
        return as_tensors(session.call(*predict_data))

    def train_once(self, *columns: Any) -> float:
        """One step on one row; the cells hold the new parameters. The loss, the mean over its elements."""
        self._check_training(1, False, False)
        self.network.set_train(True)
        for row, feed in self._sessions.rows([columns], "a step"):
            session = self._activated(self._sessions.of(TRAIN, feed))
            self._take_cells()
            loss = session.step(self._sessions.given(session, feed, row))
            self.sync()
            self._cells = Cells(session)
            return loss
        raise TrainingError("train_once: no row")

    @property
    def planned(self) -> Planned | PlannedPipeline | None:
        """What was planned for the last training step; None before there is one."""
        return self._sessions.trained

    def sync(self) -> None:
        """Bring the parameters as they stand now, in blocks on the ranks, into the network's cells.

        All ranks must call it together. `train` does so at its end; a callback that reads parameters calls it
        before, where each rank is a process.
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
        self._take_cells()
        comm = self._active.comm if self._active is not None else self._sessions.comm
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
        self._position, changed = self._state().load(directory, self._sessions.comm, step, states)
        if changed:
            self._sessions.clear()
        self._active = None
        return self._position

    def _state(self) -> TrainingState:
        return TrainingState((self.network, self.loss_fn), self.optimizer, self.scaling)

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
        heard = any(not type(one).__module__.startswith("autoshard.") for one in listeners)
        before = tuple(one for one in listeners if hears_begins(one))
        self._tell_before(before, "on_train_epoch_begin", progress)
        for row, feed in islice(self._sessions.rows(dataset, f"epoch {progress.epoch}"), begun, None):
            session = self._activated(self._sessions.of(TRAIN, feed))
            progress = replace(progress, step=progress.step + 1, total_steps=progress.total_steps + 1)
            self._tell_before(before, "on_train_step_begin", progress)
            progress = replace(progress, loss=session.step(self._sessions.given(session, feed, row)))
            self._position = Position(progress.epoch, progress.step, progress.total_steps)
            with shown(session, heard):
                _tell(listeners, "on_step_end", progress)
            if progress.get_stop_requested():
                break
        if not progress.step:
            raise TrainingError(f"train: the dataset has no rows in epoch {progress.epoch}")
        if progress.step > begun:
            assert self._active is not None
            with shown(self._active, heard):
                _tell(listeners, "on_epoch_end", progress)
        return progress

    def _tell_before(self, listeners: tuple[Callback, ...], what: str, progress: Progress) -> None:
        """What comes before steps; parameters are in the session, once there is one."""
        with nullcontext() if self._active is None else shown(self._active, bool(listeners)):
            _tell(listeners, what, progress)

    def _take_cells(self) -> None:
        """Go on with what has been written to the cells since `train_once`."""
        if self._active is not None and self._cells is not None and self._cells.have_changed():
            self._active.load()

    def _activated(self, session: AnySession) -> AnySession:
        """The session, with the parameters in its blocks."""
        if session is not self._active:
            self.sync()
            session.load()
            self._active, self._cells = session, None
        return session


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
