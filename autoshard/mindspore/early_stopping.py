"""Callbacks that end training early, or are made of functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from autoshard.mindspore.callbacks import Callback, Progress, TrainingError
from autoshard.mindspore.communication import get_rank


class EarlyStopping(Callback):
    """Ends training after `patience` values of `monitor` in a row that are not better than the best by `min_delta`.

    Args:
        monitor: "loss", of the last step of each epoch, or a metric of what `fit` evaluates, as "eval_accuracy".
        mode: "min", "max", or "auto", which is "max" where the name has "acc" in it.
        baseline: values have to be better than it, too.
        restore_best_weights: set the network's parameters to those of the best value when training is ended.

    Raises:
        TrainingError: another mode; when it hears of an evaluation: the metric is none of it.
    """

    def __init__(
        self, monitor: str = "eval_loss", min_delta: float = 0, patience: int = 0, verbose: bool = False,
        mode: str = "auto", baseline: float | None = None, restore_best_weights: bool = False,
    ) -> None:  # fmt: skip
        if mode not in ("auto", "min", "max"):
            raise TrainingError(f"EarlyStopping: mode is {mode!r}; it is 'auto', 'min' or 'max'")
        self.monitor, self.min_delta, self.patience = monitor, abs(min_delta), patience
        self.verbose, self.baseline, self.restore = verbose, baseline, restore_best_weights
        self.sign = 1 if mode == "max" or mode == "auto" and "acc" in monitor else -1
        self.wait, self.stopped_epoch, self.best = 0, 0, -math.inf
        self.weights: dict[str, np.ndarray] = {}
        self.training: Progress | None = None

    def on_train_begin(self, progress: Progress) -> None:
        """From anew."""
        self.wait, self.stopped_epoch, self.best, self.weights = 0, 0, -math.inf, {}

    def on_train_epoch_end(self, run_context: Progress) -> None:
        """Takes the loss, if that is asked for; the metrics of an evaluation come after it."""
        self.training = run_context
        if self.monitor == "loss":
            self._hear(run_context.loss, run_context)

    def on_eval_end(self, run_context: Progress) -> None:
        """Takes the metric."""
        if self.monitor == "loss" or self.training is None:
            return
        found = {f"eval_{name}": value for name, value in (run_context.metrics or {}).items()}
        if self.monitor not in found:
            raise TrainingError(f"EarlyStopping: monitor is {self.monitor!r}; known are loss, {', '.join(found)}")
        self._hear(float(found[self.monitor]), self.training)

    def on_train_end(self, progress: Progress) -> None:
        """Tells when it was ended."""
        if self.stopped_epoch and self.verbose and get_rank() == 0:
            print(f"Epoch {self.stopped_epoch:05d}: early stopping")

    def _hear(self, value: float, training: Progress) -> None:
        better = self.sign * value - self.min_delta
        self.wait += 1
        if better > self.best:
            self.best = self.sign * value
            if self.restore:
                training.model.sync()
                held = training.model.network.get_parameters()
                self.weights = {one.name: np.array(one.asnumpy()) for one in held}
            if self.baseline is None or better > self.sign * self.baseline:
                self.wait = 0
        if self.wait and self.wait >= self.patience:
            self.stopped_epoch = training.epoch
            training.request_stop()
            for one in training.model.network.get_parameters() if self.weights else ():
                one.set_data(self.weights[one.name])


class LambdaCallback(Callback):
    """A callback of functions, each of what a method of its name takes."""

    def __init__(
        self,
        on_train_epoch_begin: Callable | None = None,
        on_train_epoch_end: Callable | None = None,
        on_train_step_begin: Callable | None = None,
        on_train_step_end: Callable | None = None,
        on_train_begin: Callable | None = None,
        on_train_end: Callable | None = None,
        on_eval_epoch_begin: Callable | None = None,
        on_eval_epoch_end: Callable | None = None,
        on_eval_step_begin: Callable | None = None,
        on_eval_step_end: Callable | None = None,
        on_eval_begin: Callable | None = None,
        on_eval_end: Callable | None = None,
    ) -> None:
        for name, function in [*locals().items()]:
            if name.startswith("on_") and function is not None:
                setattr(self, name, function)
