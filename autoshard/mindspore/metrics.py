"""Metrics of `Model.eval`, with MindSpore's names and meaning: `clear`, `update` for each batch, `eval` at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from autoshard.util.errors import AutoshardError


class MetricError(AutoshardError):
    """Values that a metric cannot take, or none at all."""


class Metric:
    """Base of metrics: `clear()`, `update(*inputs)` and `eval()`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.total, self.count = 0.0, 0

    def update(self, *inputs: Any) -> None:
        """Take up a batch: what the network returned, and the labels."""
        raise NotImplementedError

    def eval(self) -> Any:
        """The value of all batches since `clear`.

        Raises:
            MetricError: there was none.
        """
        if not self.count:
            raise MetricError(f"{type(self).__name__}: nothing to evaluate; update(...) comes first")
        return self.total / self.count


def _pair(inputs: tuple[Any, ...], what: str) -> tuple[np.ndarray, np.ndarray]:
    if len(inputs) != 2:
        raise MetricError(f"{what}: update takes what the network returned and the labels, not {len(inputs)} values")
    return np.asarray(inputs[0]), np.asarray(inputs[1])


class MAE(Metric):
    """The sum of absolute differences, divided by the number of rows."""

    def update(self, *inputs: Any) -> None:
        found, wanted = _pair(inputs, "MAE")
        self.total += float(np.abs(found.astype(np.float64) - wanted.reshape(found.shape)).sum())
        self.count += found.shape[0]


class MSE(Metric):
    """The sum of squared differences, divided by the number of rows."""

    def update(self, *inputs: Any) -> None:
        found, wanted = _pair(inputs, "MSE")
        self.total += float(np.square(found.astype(np.float64) - wanted.reshape(found.shape)).sum())
        self.count += found.shape[0]


class Loss(Metric):
    """The mean of the batches' losses."""

    def update(self, *inputs: Any) -> None:
        if len(inputs) != 1:
            raise MetricError(f"Loss: update takes a loss, not {len(inputs)} values")
        self.total += float(np.mean(np.asarray(inputs[0], np.float64)))
        self.count += 1


def _classes(found: np.ndarray, wanted: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Class numbers that the network found, and the true ones, out of scores [N, C] and numbers or one-hot rows."""
    if wanted.ndim == found.ndim:
        wanted = wanted.argmax(1)
    if found.ndim != 2 or wanted.shape != found.shape[:1]:
        raise MetricError(f"{what}: scores {found.shape} and labels {wanted.shape}; they are [N, C] and [N] or [N, C]")
    return found.argmax(1), wanted


class Accuracy(Metric):
    """The share of rows whose class is right; with "multilabel" of rows in which each of the 0s and 1s is."""

    def __init__(self, eval_type: str = "classification") -> None:
        if eval_type not in ("classification", "multilabel"):
            raise MetricError(f"Accuracy: eval_type is {eval_type!r}; it is 'classification' or 'multilabel'")
        self.eval_type = eval_type
        super().__init__()

    def update(self, *inputs: Any) -> None:
        found, wanted = _pair(inputs, "Accuracy")
        if self.eval_type == "classification":
            found, wanted = _classes(found, wanted, "Accuracy")
            right = found == wanted
        else:
            right = (found == wanted).reshape(len(found), -1).all(1)
        self.total += int(right.sum())
        self.count += len(right)


class TopKCategoricalAccuracy(Metric):
    """The share of rows whose class is among the k with the best scores."""

    def __init__(self, k: int) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise MetricError(f"TopKCategoricalAccuracy: k is {k!r}; it is a whole number of at least 1")
        self.k = k
        super().__init__()

    def update(self, *inputs: Any) -> None:
        found, wanted = _pair(inputs, type(self).__name__)
        _, wanted = _classes(found, wanted, type(self).__name__)
        best = np.argsort(-found, axis=1, kind="stable")[:, : self.k]
        self.total += int((best == wanted[:, None]).any(1).sum())
        self.count += len(found)


class Top1CategoricalAccuracy(TopKCategoricalAccuracy):
    """The share of rows whose class has the best score."""

    def __init__(self) -> None:
        super().__init__(1)


class Top5CategoricalAccuracy(TopKCategoricalAccuracy):
    """The share of rows whose class is among the five with the best scores."""

    def __init__(self) -> None:
        super().__init__(5)


class _Counted(Metric):
    """Base of metrics by class: how many rows are of it, how many were found to be, and how many of these are."""

    def clear(self) -> None:
        """Begin anew."""
        self.right: Any = 0
        self.found: Any = 0
        self.wanted: Any = 0
        self.columns = 0

    def _take(self, found: np.ndarray, wanted: np.ndarray) -> None:
        """Take up rows of 0s and 1s [rows, classes]."""
        what = type(self).__name__
        if self.columns not in (0, found.shape[1]):
            raise MetricError(f"{what}: {found.shape[1]} classes come after batches with {self.columns}")
        self.columns = found.shape[1]
        sums = (found * wanted).sum(0), found.sum(0), wanted.sum(0)
        self.right, self.found, self.wanted = (
            self._joined(old, new) for old, new in zip((self.right, self.found, self.wanted), sums, strict=True)
        )

    def _joined(self, old: Any, new: np.ndarray) -> Any:
        return old + new

    def _by_class(self, inputs: tuple[Any, ...]) -> None:
        what = type(self).__name__
        scores, labels = _pair(inputs, what)
        best, wanted = _classes(scores, labels, what)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < scores.shape[1]:
            raise MetricError(f"{what}: labels reach from {wanted.min()} to {wanted.max()}; scores are {scores.shape}")
        ones = np.eye(scores.shape[1])
        self._take(ones[best], ones[wanted.astype(np.int64)])

    def _share(self, part: Any, whole: Any, average: bool) -> Any:
        """MindSpore's division: 0 where there is nothing."""
        if not self.columns:
            raise MetricError(f"{type(self).__name__}: nothing to evaluate; update(...) comes first")
        shares = part / (whole + sys.float_info.min)
        return shares.mean() if average else shares


class _ByType(_Counted):
    """Of scores and class numbers (or one-hot rows); with "multilabel" of rows of 0s and 1s, one by one."""

    def __init__(self, eval_type: str = "classification") -> None:
        if eval_type not in ("classification", "multilabel"):
            raise MetricError(
                f"{type(self).__name__}: eval_type is {eval_type!r}; it is 'classification' or 'multilabel'"
            )
        self.eval_type = eval_type
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Take up a batch: scores [N, C] and class numbers [N], or rows of 0s and 1s [N, C] twice."""
        if self.eval_type == "classification":
            self._by_class(inputs)
            return
        found, wanted = _pair(inputs, type(self).__name__)
        if found.ndim < 2 or found.shape != wanted.shape:
            raise MetricError(
                f"{type(self).__name__}: {found.shape} and labels {wanted.shape}; both are [N, C], of 0s and 1s"
            )
        # A row's labels are what is counted: rows take the place of classes.
        self.columns = 0
        self._take(*(one.swapaxes(1, 0).reshape(one.shape[1], -1) for one in (found, wanted)))

    def _joined(self, old: Any, new: np.ndarray) -> Any:
        return old + new if self.eval_type == "classification" else np.append([] if np.isscalar(old) else old, new)


class Precision(_ByType):
    """By class the share of what was found to be of it that is."""

    def eval(self, average: bool = False) -> Any:
        """By class, or their mean.

        Raises:
            MetricError: there was no batch.
        """
        return self._share(self.right, self.found, average)


class Recall(_ByType):
    """By class the share of what is of it that was found."""

    def eval(self, average: bool = False) -> Any:
        """By class, or their mean.

        Raises:
            MetricError: there was no batch.
        """
        return self._share(self.right, self.wanted, average)


class Fbeta(_Counted):
    """By class the mean of precision and recall, weighted by beta: (1 + beta^2) right / (beta^2 wanted + found)."""

    def __init__(self, beta: float) -> None:
        if not beta > 0:
            raise MetricError(f"Fbeta: beta is {beta!r}; it is a number above 0")
        self.beta = beta
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Take up a batch: scores [N, C] and class numbers [N] (or one-hot rows)."""
        self._by_class(inputs)

    def eval(self, average: bool = False) -> Any:
        """By class, or their mean.

        Raises:
            MetricError: there was no batch.
        """
        square = self.beta**2
        return self._share((1 + square) * self.right, square * self.wanted + self.found, average)


class F1(Fbeta):
    """Fbeta of beta 1."""

    def __init__(self) -> None:
        super().__init__(1.0)


_BY_NAME: dict[str, Callable[..., Metric]] = {
    "accuracy": Accuracy, "acc": Accuracy, "loss": Loss, "mae": MAE, "mse": MSE,
    "precision": Precision, "recall": Recall, "F1": F1, "topk": TopKCategoricalAccuracy,
    "top_1_accuracy": Top1CategoricalAccuracy, "top_5_accuracy": Top5CategoricalAccuracy,
}  # fmt: skip


def get_metric_fn(name: str, *args: Any, **kwargs: Any) -> Metric:
    """The metric of that name.

    Raises:
        MetricError: there is none.
    """
    if name not in _BY_NAME:
        raise MetricError(f"metrics: there is no {name!r}; known are {', '.join(_BY_NAME)}")
    return _BY_NAME[name](*args, **kwargs)


def metrics_of(given: Any) -> dict[str, Metric]:
    """What `Model(metrics=...)` takes, as metrics by name: names, or a mapping from names to metrics.

    Raises:
        MetricError: anything else.
    """
    if given is None:
        return {}
    if isinstance(given, dict):
        wrong = [name for name, one in given.items() if not isinstance(one, Metric)]
        if wrong:
            raise MetricError(f"metrics: {wrong[0]!r} is {given[wrong[0]]!r}, which is no Metric")
        return dict(given)
    if isinstance(given, set | list | tuple) and all(isinstance(one, str) for one in given):
        return {name: get_metric_fn(name) for name in sorted(given)}
    raise MetricError(
        f"metrics is {given!r}; it is a set of names, such as {{'accuracy'}}, or a dict of metrics by name"
    )
