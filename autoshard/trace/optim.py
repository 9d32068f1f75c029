"""Optimizers: from gradients to new parameters and states, on arrays at once or inside a trace as nodes.

States are parameters of the optimizer, named after what they belong to (`moments.dense1.weight`). A learning
rate is a number, a sequence with a number per step (the last one stays), or a function of the step's number,
which counts from 0; tensors and arrays of other packages are taken as the numbers that they hold. `clip_norm` and
`clip_value` clip gradients before a step; a `loss_scale` is multiplied into the loss that is differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.ops.primitive import named_primitive
from autoshard.trace.clipping import Clipping
from autoshard.trace.initializer import deferred
from autoshard.trace.loss_scale import LossScale, OptimizerState
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ContextError, GraphError

Rate = float | Sequence[float] | Callable[[Any], Any]


class State(OptimizerState):
    """Zeros beside a parameter, named `prefix.<its name>`."""

    def __init__(self, prefix: str, of: Parameter) -> None:
        super().__init__(deferred("zeros", of.shape, of.dtype), requires_grad=False)
        self.prefix, self.of = prefix, of

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.prefix}.{self.of.name}"


class StepCount(OptimizerState):
    """How many steps were done."""

    def __init__(self) -> None:
        super().__init__(np.zeros((), np.int32), name="global_step", requires_grad=False)


@dataclass(frozen=True, eq=False)
class Group:
    """Parameters with settings of their own."""

    params: tuple[Parameter, ...]
    learning_rate: Rate
    weight_decay: float


class Optimizer:
    """Base: holds the groups of parameters, the states, and the step counter where one is needed.

    Args:
        params: parameters, or groups: mappings with "params" and optionally "lr" and "weight_decay".
        learning_rate: see the module's text.
        weight_decay: how much of the parameter is added to its gradient (AdamW: taken from the parameter).
        clip_norm, clip_value: see `trace.clipping.Clipping`; None leaves gradients as they are.
        loss_scale: what a step of training (`train_step`) multiplies the loss by, see `trace.loss_scale`; a number
            stays as it is. Called on gradients of one's own, an optimizer takes them as they are.

    Raises:
        ContextError: no parameters, one given twice, or a setting that cannot be.
    """

    operator: str
    state_names: tuple[str, ...] = ()
    counts_steps = False
    scaling: LossScale | None = None

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        loss_scale: LossScale | float | None = None,
        **attrs: Any,
    ) -> None:
        self.clipping = Clipping(clip_norm, clip_value)
        self.scaling = loss_scale if isinstance(loss_scale, LossScale | None) else LossScale(loss_scale)
        self.groups = _groups(params, learning_rate, weight_decay, type(self).__name__)
        self.attrs = attrs
        self.states = {id(one): [State(name, one) for name in self.state_names] for one in self.parameters}
        varies = any(not isinstance(group.learning_rate, int | float) for group in self.groups)
        self.global_step: Parameter | None = None
        if varies or self.counts_steps:
            self.global_step = StepCount()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(parameter for group in self.groups for parameter in group.params)

    def parameters_dict(self) -> dict[str, Parameter]:
        """The states by name, the step counter and what a loss scale changes among them: what a checkpoint needs
        beside the model's parameters.
        """
        states = [state for row in self.states.values() for state in row]
        states += [] if self.global_step is None else [self.global_step]
        states += [] if self.scaling is None else self.scaling.parameters
        return {state.name: state for state in states}

    def __call__(self, grads: Sequence[Any]) -> None:
        """Assign new values to parameters and states.

        Args:
            grads: one per parameter, in their order; None leaves the parameter as it is.
        """
        if len(grads) != len(self.parameters):
            raise GraphError(f"{type(self).__name__}: {len(grads)} gradients for {len(self.parameters)} parameters")
        clipped = dict(zip(map(id, self.parameters), self.clipping(self.parameters, grads), strict=True))
        following = (
            None
            if self.global_step is None
            else named_primitive("ScalarAdd", "global_step.next", addend=1)(self.global_step)
        )
        for i, group in enumerate(self.groups):
            rate = self._rate(group.learning_rate, i)
            for parameter in group.params:
                grad = clipped[id(parameter)]
                if grad is not None:
                    self._update(parameter, grad, following, rate, group.weight_decay)
        if self.global_step is not None:
            self.global_step.assign(following)

    def _rate(self, rate: Rate, group: int) -> Any:
        if isinstance(rate, int | float):
            return float(rate)
        if callable(rate):
            return self._traced_rate(rate)
        name = "learning_rate" if group == 0 else f"learning_rate_{group}"
        last = np.asarray(len(rate) - 1, np.int32)
        step = named_primitive("Minimum", f"{name}.step")(self.global_step, last)
        return named_primitive("Gather", name)(np.asarray(rate, np.float32), step, 0)

    def _traced_rate(self, rate: Callable[[Any], Any]) -> Any:
        try:
            found = rate(self.global_step)
        except (TypeError, GraphError) as error:
            raise GraphError(
                f"{type(self).__name__}: its learning rate is a function that fails on the number of the step, which "
                f"is a tensor of the traced step ({error}); write it with arithmetic and autoshard.ops (cos, minimum, "
                "select), or give a number for each step, [rate(i) for i in range(steps)]"
            ) from error
        shape = tuple(getattr(found, "shape", ()))
        if math.prod(shape) != 1:
            raise GraphError(f"{type(self).__name__}: its learning rate is of shape {shape}; it is one number a step")
        return named_primitive("Reshape", "learning_rate.number", shape=())(found) if shape else found

    def _update(self, parameter: Parameter, grad: Any, following: Any, rate: Any, weight_decay: float) -> None:
        targets = [parameter, *self.states[id(parameter)]]
        name, common = f"update.{parameter.name}", [following] if self.counts_steps else []
        if parameter.dtype.is_float:
            results = self._stepped(name, [*targets, grad, *common], rate, weight_decay)
        else:
            real, imaginary = _parts(name, [*targets, grad])
            imaginary[-1] = named_primitive("Neg", f"{name}.conjugate")(imaginary[-1])
            pairs = zip(
                self._stepped(f"{name}.real", [*real, *common], rate, weight_decay),
                self._stepped(f"{name}.imag", [*imaginary, *common], rate, weight_decay),
                strict=True,
            )
            results = [named_primitive("Complex", f"{name}.{i}")(*pair) for i, pair in enumerate(pairs)]
        for target, result in zip(targets, results, strict=True):
            target.assign(result)

    def _stepped(self, name: str, operands: list[Any], rate: Any, weight_decay: float) -> Sequence[Any]:
        """What follows on a parameter and its states."""
        attrs: dict[str, Any] = {**self.attrs, "weight_decay": weight_decay}
        if isinstance(rate, float):
            attrs["learning_rate"] = rate
        else:
            operands.append(rate)
        kind = self.operator if isinstance(rate, float) else f"{self.operator}Rate"
        results = named_primitive(kind, name, **attrs)(*operands)
        return results if self.state_names else [results]


class Momentum(Optimizer):
    """accum = momentum * accum + grad; parameter -= learning_rate * accum (with Nesterov: of grad + momentum
    * accum).
    """

    operator, state_names = "ApplyMomentum", ("moments",)

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate,
        momentum: float,
        weight_decay: float = 0.0,
        use_nesterov: bool = False,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        loss_scale: LossScale | float | None = None,
    ) -> None:
        _check_share("Momentum", "momentum", momentum)
        super().__init__(
            params,
            learning_rate,
            weight_decay,
            clip_norm,
            clip_value,
            loss_scale,
            momentum=momentum,
            nesterov=use_nesterov,
        )


class SGD(Optimizer):
    """parameter -= learning_rate * grad, or the steps of Momentum where `momentum` is not 0."""

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        loss_scale: LossScale | float | None = None,
    ) -> None:
        _check_share("SGD", "momentum", momentum)
        if nesterov and not momentum:
            raise ContextError("SGD: nesterov needs a momentum above 0")
        self.operator = "ApplyMomentum" if momentum else "SGD"
        self.state_names = ("accum",) if momentum else ()
        attrs = {"momentum": momentum, "nesterov": nesterov} if momentum else {}
        super().__init__(params, learning_rate, weight_decay, clip_norm, clip_value, loss_scale, **attrs)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015) with bias correction; weight decay adds to the gradient."""

    operator, state_names, counts_steps = "Adam", ("moment1", "moment2"), True
    decoupled, form = False, "paper"

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        loss_scale: LossScale | float | None = None,
    ) -> None:
        name = type(self).__name__
        _check_share(name, "beta1", beta1)
        _check_share(name, "beta2", beta2)
        super().__init__(
            params, learning_rate, weight_decay, clip_norm, clip_value, loss_scale, beta1=beta1, beta2=beta2, eps=eps,
            decoupled=self.decoupled, form=self.form,
        )  # fmt: skip


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself (Loshchilov and Hutter 2019)."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        loss_scale: LossScale | float | None = None,
    ) -> None:
        super().__init__(params, learning_rate, beta1, beta2, eps, weight_decay, clip_norm, clip_value, loss_scale)


def _parts(name: str, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The real parts of complex tensors, and the imaginary ones. Steps of both are those of two parameters, as in
    torch; that of z goes against the conjugate of the c with dL = Re(c dz)."""
    real = [named_primitive("Real", f"{name}.real{i}")(one) for i, one in enumerate(tensors)]
    return real, [named_primitive("Imag", f"{name}.imag{i}")(one) for i, one in enumerate(tensors)]


def _groups(params: Iterable[Any], rate: Rate, weight_decay: float, what: str) -> tuple[Group, ...]:
    entries = list(params)
    if not entries:
        raise ContextError(f"{what}: no parameters to train")
    if not isinstance(entries[0], Mapping):
        entries = [{"params": entries}]
    groups = tuple(_group(entry, rate, weight_decay, what) for entry in entries)
    seen: set[int] = set()
    for parameter in (one for group in groups for one in group.params):
        if not isinstance(parameter, Parameter):
            raise ContextError(
                f"{what}: params holds {parameter!r}, which is no Parameter; pass net.trainable_params()"
            )
        if id(parameter) in seen:
            raise ContextError(f"{what}: parameter {parameter.name} is given twice")
        seen.add(id(parameter))
    return groups


def _group(entry: Mapping[str, Any], rate: Rate, weight_decay: float, what: str) -> Group:
    unknown = set(entry) - {"params", "lr", "weight_decay"}
    if unknown or "params" not in entry:
        raise ContextError(f"{what}: a group has 'params', 'lr' and 'weight_decay', not {', '.join(map(str, entry))}")
    own = _plain(entry.get("lr", rate))
    if not _is_rate(own):
        raise ContextError(f"{what}: learning rate {own!r}; it is a number of at least 0, a sequence or a function")
    decay = _plain(entry.get("weight_decay", weight_decay))
    if not isinstance(decay, int | float):
        raise ContextError(f"{what}: weight_decay is {decay!r}; it is a number")
    return Group(tuple(entry["params"]), own, float(decay))


def _plain(given: Any) -> Any:
    """A setting that is a tensor of torch or an array of JAX or numpy, as a number or an array of numpy."""
    if isinstance(given, Parameter) or not hasattr(given, "__array__"):
        return given
    array = np.asarray(given)
    return array.item() if array.ndim == 0 else array


def _is_rate(rate: Any) -> bool:
    """Whether it is a function, a number of at least 0, or a sequence of such."""
    numbers = [rate] if isinstance(rate, int | float) else rate
    if callable(rate) or not isinstance(numbers, Sequence | np.ndarray) or not len(numbers):
        return callable(rate)
    return all(isinstance(one, int | float | np.number) and one >= 0 for one in numbers)


def _check_share(what: str, name: str, value: float) -> None:
    if not 0.0 <= value < 1.0:
        raise ContextError(f"{what}: {name} is {value}; it is at least 0.0 and below 1.0")
