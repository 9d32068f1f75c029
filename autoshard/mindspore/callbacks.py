"""Callbacks of `Model.train` and `eval`: what happens at the begin and end of it, of each epoch and of each step.

    model.train(3, data, callbacks=[LossMonitor(), ModelCheckpoint(directory="checkpoints")])

Every rank calls its callbacks at the same steps; only rank 0 prints and writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from autoshard.mindspore.checkpoint import save_checkpoint
from autoshard.mindspore.communication import get_rank
from autoshard.util.errors import AutoshardError


class TrainingError(AutoshardError):
    """Training that cannot go on."""


class _Arguments(SimpleNamespace):
    """What MindSpore's callbacks ask for."""

    @property
    def batch_num(self) -> int:
        """How many steps an epoch has; counted when asked for, as a dataset may have to run through its source."""
        return self.train_dataset.get_dataset_size()


@dataclass(frozen=True)
class Progress:
    """Where training stands.

    Attributes:
        model: the Model that trains. Parameters of its network are those that the step left, and what a callback sets
            them to is trained on; where each rank is a process, all call `model.sync()` before they read.
        epoch, step: from 1 on; step counts within the epoch.
        total_steps: all steps of this `train` call.
        loss: that of the last step, a number: where the loss is no scalar, the mean over its elements.
        epochs: how many there will be.
        dataset: the rows that it trains on, or is evaluated on.
        mode: "train" or "eval".
        outputs: of a step of evaluation with metrics, what these are given.
        metrics: after an evaluation, what it came to.
        asked: what callbacks have asked for; all that belongs to one `train` shares it.
    """

    model: Any
    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    loss: float = math.nan
    epochs: int = 1
    dataset: Any = None
    mode: str = "train"
    outputs: Any = None
    metrics: Any = None
    asked: dict[str, bool] = field(default_factory=dict)

    def request_stop(self) -> None:
        """End training after this step. Where each rank is a process, all ask for it at the same step."""
        self.asked["stop"] = True

    def get_stop_requested(self) -> bool:
        """Whether a callback has asked for the end."""
        return self.asked.get("stop", False)

    def original_args(self) -> SimpleNamespace:
        """The same under MindSpore's names, for callbacks that are written for its RunContext."""
        return _Arguments(
            train_dataset=self.dataset,
            cur_epoch_num=self.epoch,
            cur_step_num=self.total_steps,
            net_outputs=self.loss if self.outputs is None else self.outputs,
            mode=self.mode,
            metrics=self.metrics,
            network=self.model.network,
            train_network=self.model.network,
            loss_fn=self.model.loss_fn,
            optimizer=self.model.optimizer,
            epoch_num=self.epochs,
        )


class Callback:
    """Base of callbacks; override what is of interest: the first four, or MindSpore's methods, which they call.

    A step of `train` calls `on_train_step_begin` and `on_train_step_end`, one of `eval` `on_eval_step_begin` and
    `on_eval_step_end`; so it is for epochs, and for the whole. Each calls the former name, without "on" and "train".
    """

    def on_train_begin(self, progress: Progress) -> None:
        """Before the first step."""
        self.begin(progress)

    def on_step_end(self, progress: Progress) -> None:
        """After each step."""
        self.on_train_step_end(progress)

    def on_epoch_end(self, progress: Progress) -> None:
        """After the last step of each epoch."""
        self.on_train_epoch_end(progress)

    def on_train_end(self, progress: Progress) -> None:
        """After the last epoch; the cells hold the trained parameters."""
        self.end(progress)

    def begin(self, run_context: Progress) -> None:
        """MindSpore's former name of `on_train_begin` and `on_eval_begin`."""

    def on_train_epoch_begin(self, run_context: Progress) -> None:
        """Before the first step of each epoch."""
        self.epoch_begin(run_context)

    def on_train_step_begin(self, run_context: Progress) -> None:
        """Before each step, whose number counts already."""
        self.step_begin(run_context)

    def epoch_begin(self, run_context: Progress) -> None:
        """MindSpore's former name of `on_train_epoch_begin` and `on_eval_epoch_begin`."""

    def step_begin(self, run_context: Progress) -> None:
        """MindSpore's former name of `on_train_step_begin` and `on_eval_step_begin`."""

    def on_eval_begin(self, run_context: Progress) -> None:
        """Before the first row of an evaluation."""
        self.begin(run_context)

    def on_eval_epoch_begin(self, run_context: Progress) -> None:
        """The same."""
        self.epoch_begin(run_context)

    def on_eval_step_begin(self, run_context: Progress) -> None:
        """Before each row."""
        self.step_begin(run_context)

    def on_eval_step_end(self, run_context: Progress) -> None:
        """After each row."""
        self.step_end(run_context)

    def on_eval_epoch_end(self, run_context: Progress) -> None:
        """After the last row."""
        self.epoch_end(run_context)

    def on_eval_end(self, run_context: Progress) -> None:
        """The same, with `metrics`."""
        self.end(run_context)

    def on_train_step_end(self, run_context: Progress) -> None:
        """MindSpore's name of `on_step_end`."""
        self.step_end(run_context)

    def step_end(self, run_context: Progress) -> None:
        """MindSpore's former name of `on_step_end`."""

    def on_train_epoch_end(self, run_context: Progress) -> None:
        """MindSpore's name of `on_epoch_end`."""
        self.epoch_end(run_context)

    def epoch_end(self, run_context: Progress) -> None:
        """MindSpore's former name of `on_epoch_end`."""

    def end(self, run_context: Progress) -> None:
        """MindSpore's former name of `on_train_end`."""


class LossMonitor(Callback):
    """Prints `epoch: 1 step: 4, loss is 3.25` on rank 0, and stops training at a loss that is no number.

    Args:
        per_print_times: print every that many steps; 0 only at the end of each epoch.
    """

    def __init__(self, per_print_times: int = 1, *, write: Callable[[str], None] = print) -> None:
        self.per_print_times = _count("LossMonitor: per_print_times", per_print_times)
        self.write = write

    def on_step_end(self, progress: Progress) -> None:
        if not math.isfinite(progress.loss):
            raise TrainingError(
                f"the loss is {progress.loss} at epoch {progress.epoch} step {progress.step}; "
                "training stops here (try a smaller learning rate, or look for large values in the data)"
            )
        if self.per_print_times and progress.total_steps % self.per_print_times == 0:
            self._print(progress)

    def on_epoch_end(self, progress: Progress) -> None:
        if not self.per_print_times:
            self._print(progress)

    def _print(self, progress: Progress) -> None:
        if get_rank() == 0:
            self.write(f"epoch: {progress.epoch} step: {progress.step}, loss is {progress.loss:.6g}")


class TimeMonitor(Callback):
    """Prints the time of each epoch and its mean per step, on rank 0.

    Args:
        data_size: accepted for the sake of MindSpore's scripts; steps are counted.
        data_time: MindSpore's; False only.
    """

    def __init__(
        self, data_size: int | None = None, data_time: bool = False, *, write: Callable[[str], None] = print
    ) -> None:
        if data_time:
            raise TrainingError("TimeMonitor: data_time=True is not offered; leave it False")
        self.write = write
        self._since = 0.0

    def on_train_begin(self, progress: Progress) -> None:
        self._since = time.perf_counter()

    def on_epoch_end(self, progress: Progress) -> None:
        seconds = time.perf_counter() - self._since
        self._since = time.perf_counter()
        if get_rank() == 0:
            each = f", {seconds / progress.step * 1e3:.3f} ms a step" if progress.step else ""
            self.write(f"epoch: {progress.epoch}, {seconds:.3f} s{each}")


@dataclass
class History(Callback):
    """Keeps the loss of every step, and the mean loss of every epoch."""

    losses: list[float] = field(default_factory=list)
    epoch_losses: list[float] = field(default_factory=list)

    def on_step_end(self, progress: Progress) -> None:
        self.losses.append(progress.loss)

    def on_epoch_end(self, progress: Progress) -> None:
        recent = self.losses[-progress.step :]
        self.epoch_losses.append(sum(recent) / len(recent))


@dataclass(frozen=True)
class CheckpointConfig:
    """When ModelCheckpoint writes and how many files it keeps.

    Attributes:
        save_checkpoint_steps: every that many steps; 0 only at the end of training.
        save_checkpoint_seconds: MindSpore's; 0 only.
        keep_checkpoint_max: older files of this run are removed; 0 keeps all.
        keep_checkpoint_per_n_minutes: MindSpore's; 0 only.
        integrated_save: True only: files hold whole parameters. Each rank's own parts are what `Model.save` writes.
        async_save: accepted for the sake of MindSpore's scripts; a file is whole once a step is over.
        saved_network: the cell whose parameters are saved, and no state of the optimizer.
        append_info: what else is saved: "epoch_num", "step_num", and dicts from names to numbers or arrays.
    """

    save_checkpoint_steps: int = 1
    save_checkpoint_seconds: int = 0
    keep_checkpoint_max: int = 5
    keep_checkpoint_per_n_minutes: int = 0
    integrated_save: bool = True
    async_save: bool = False
    saved_network: Any = None
    append_info: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if self.save_checkpoint_seconds:
            raise TrainingError("CheckpointConfig: save_checkpoint_seconds is not offered; give save_checkpoint_steps")
        if self.keep_checkpoint_per_n_minutes:
            raise TrainingError(
                "CheckpointConfig: keep_checkpoint_per_n_minutes is not offered; give keep_checkpoint_max"
            )
        if not self.integrated_save:
            raise TrainingError(
                "CheckpointConfig: integrated_save=False is not offered; leave it out for whole parameters in a file, "
                "or take autoshard.mindspore.callbacks.ShardedCheckpoint(directory), by which each rank saves its parts"
            )
        known = ("epoch_num", "step_num")
        wrong = [one for one in self.append_info or () if not isinstance(one, Mapping) and one not in known]
        if wrong:
            raise TrainingError(
                f"CheckpointConfig: append_info has {wrong[0]!r}; it has 'epoch_num', 'step_num', and dicts"
            )
        _count("CheckpointConfig: save_checkpoint_steps", self.save_checkpoint_steps)
        _count("CheckpointConfig: keep_checkpoint_max", self.keep_checkpoint_max)


class ModelCheckpoint(Callback):
    """Saves `<directory>/<prefix>-<epoch>_<step>.safetensors`; also at the end: the network's parameters and the
    optimizer's states. `load_param_into_net` takes them up, for the network and, to go on training, for the optimizer.

    Args:
        prefix: begin of the file names.
        directory: created where missing; the current folder by default.
        config: when, and how many.
    """

    def __init__(
        self, prefix: str = "CKP", directory: str | Path | None = None, config: CheckpointConfig | None = None
    ) -> None:
        self.prefix = prefix
        self.directory = Path(directory or ".")
        self.config = config or CheckpointConfig()
        self.saved: list[Path] = []

    def on_step_end(self, progress: Progress) -> None:
        every = self.config.save_checkpoint_steps
        if every and progress.total_steps % every == 0:
            self._save(progress)

    def on_train_end(self, progress: Progress) -> None:
        if progress.total_steps:
            self._save(progress)

    def _save(self, progress: Progress) -> None:
        path = self.directory / f"{self.prefix}-{progress.epoch}_{progress.step}.safetensors"
        if self.saved and self.saved[-1] == path:
            return
        progress.model.sync()
        self.saved.append(save_checkpoint(self._held(progress), path))
        self._remove_oldest()

    def _held(self, progress: Progress) -> dict[str, Any]:
        model, own = progress.model, self.config.saved_network
        cells = (model.network, model.optimizer) if own is None else (own,)
        held = {name: one for cell in cells for name, one in cell.parameters_dict().items()}
        numbers = {"epoch_num": progress.epoch, "step_num": progress.total_steps}
        for one in self.config.append_info or ():
            held |= one if isinstance(one, Mapping) else {one: np.asarray(numbers[one], np.int32)}
        return held

    def _remove_oldest(self) -> None:
        keep = self.config.keep_checkpoint_max
        while keep and len(self.saved) > keep:
            oldest = self.saved.pop(0)
            if get_rank() == 0 and oldest not in self.saved:
                oldest.unlink(missing_ok=True)


class ShardedCheckpoint(Callback):
    """Saves all that training changes into a directory of checkpoints (see `Model.save`): each rank its own blocks.

        model.load("checkpoints")
        model.train(3, data, callbacks=[ShardedCheckpoint("checkpoints", every=100)], resume=True)

    Args:
        every: save after every that many steps.
        keep: how many checkpoints stay; 0: all.
    """

    def __init__(self, directory: str | Path, every: int = 1, keep: int = 2) -> None:
        self.directory = Path(directory)
        self.every, self.keep = _count("ShardedCheckpoint: every", every), _count("ShardedCheckpoint: keep", keep)
        if not every:
            raise TrainingError("ShardedCheckpoint: every is 0; it must be a whole number of at least 1")

    def on_step_end(self, progress: Progress) -> None:
        if progress.total_steps % self.every == 0:
            progress.model.save(self.directory, self.keep)


class Validation(Callback):
    """Evaluates the model after epochs, prints what its metrics come to on rank 0, and keeps it in `results`.

    Args:
        frequency: after each so-many-th epoch, or the numbers of the epochs.
        listeners: callbacks of the evaluations.
    """

    def __init__(
        self,
        dataset: Any,
        frequency: int | Sequence[int] = 1,
        *,
        listeners: Sequence[Callback] = (),
        write: Callable[[str], None] = print,
    ) -> None:
        self.dataset, self.frequency, self.write, self.listeners = dataset, frequency, write, tuple(listeners)
        self.results: dict[int, Any] = {}

    def on_epoch_end(self, progress: Progress) -> None:
        every = self.frequency
        if progress.epoch % every if isinstance(every, int) else progress.epoch not in every:
            return
        self.results[progress.epoch] = found = progress.model.eval(self.dataset, self.listeners)
        if get_rank() == 0:
            self.write(f"Eval result: epoch {progress.epoch}, metrics: {found}")


_BEGIN = ("on_train_step_begin", "on_train_epoch_begin", "step_begin", "epoch_begin")


def hears_begins(one: Callback) -> bool:
    """Whether a callback does anything before steps or epochs."""
    return any(name in vars(one) or getattr(type(one), name) is not getattr(Callback, name) for name in _BEGIN)


def as_callbacks(given: Callback | Sequence[Callback] | None) -> tuple[Callback, ...]:
    """What `callbacks=` takes, as a tuple.

    Raises:
        TrainingError: something that is no Callback.
    """
    callbacks = (given,) if isinstance(given, Callback) else tuple(given or ())
    for one in callbacks:
        if not isinstance(one, Callback):
            raise TrainingError(
                f"callbacks: {one!r} is no Callback; give an instance of a subclass of autoshard.Callback"
            )
    return callbacks


def _count(what: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TrainingError(f"{what} is {value!r}; it must be a whole number of at least 0")
    return value
