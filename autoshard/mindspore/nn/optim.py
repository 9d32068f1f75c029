"""Optimizers with MindSpore's names, arguments, defaults and steps; their machinery is `autoshard.trace.optim`.

A weight decay, where parameters are not grouped, leaves out those with "beta" or "gamma" in their names. Gradients are
divided by `loss_scale` first. A group `{"order_params": ...}` has all parameters in the order of gradients. What a step
does to all gradients together, a subclass says in `construct`:

    class Clipped(nn.Momentum):
        def construct(self, gradients):
            return super().construct(ops.clip_by_global_norm(gradients, 1.0))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoshard.ops.primitive import named_primitive
from autoshard.trace import optim
from autoshard.trace.optim import Rate
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import ContextError


class Steps(optim.Optimizer):
    """What MindSpore does to gradients and weight decay before a step."""

    loss_scale = 1.0
    ordered: tuple[Parameter, ...] = ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters, as gradients are given: group by group, or as a group "order_params" has them."""
        return self.ordered or super().parameters

    def __call__(self, grads: Sequence[Any]) -> None:
        """Assign new values to parameters and states. Raises GraphError: not a gradient for each parameter."""
        self.construct(grads)

    def construct(self, gradients: Sequence[Any]) -> None:
        """The same; what a subclass may do to the gradients before."""
        optim.Optimizer.__call__(self, gradients)

    def _begin(self, params: Iterable[Any], loss_scale: float = 1.0) -> list[Any]:
        """The parameters as a list; notes the scale, and whether they are grouped."""
        name = type(self).__name__
        if isinstance(loss_scale, bool) or not isinstance(loss_scale, int | float) or loss_scale <= 0:
            raise ContextError(f"{name}: loss_scale is {loss_scale!r}; it is a number above 0")
        self.loss_scale = float(loss_scale)
        given = list(params)
        self.is_group = bool(given) and isinstance(given[0], Mapping)
        return self._without_order(given) if self.is_group else given

    def _without_order(self, groups: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The groups but for the order of parameters, which is noted; without what is False in them."""
        rest = [one for one in groups if "order_params" not in one]
        orders = [tuple(one["order_params"]) for one in groups if "order_params" in one]
        held = [parameter for one in rest for parameter in one.get("params", ())]
        for order in orders:
            if len(order) != len(held) or set(map(id, order)) != set(map(id, held)):
                away = sorted({one.name for one in held} ^ {one.name for one in order})
                raise ContextError(
                    f"{type(self).__name__}: order_params has {len(order)} parameters, the groups have {len(held)}; it "
                    f"has each of these once{', unlike ' + ', '.join(away[:5]) if away else ''}"
                )
            self.ordered = order
        return [{key: held for key, held in one.items() if key != "grad_centralization" or held} for one in rest]

    def _update(self, parameter: Parameter, grad: Any, following: Any, rate: Any, weight_decay: float) -> None:
        if self.loss_scale != 1:
            grad = named_primitive("ScalarMul", f"unscaled.{parameter.name}", factor=1 / self.loss_scale)(grad)
        if not self.is_group and ("beta" in parameter.name or "gamma" in parameter.name):
            weight_decay = 0.0
        self._apply(parameter, grad, following, rate, weight_decay)

    def _apply(self, parameter: Parameter, grad: Any, following: Any, rate: Any, weight_decay: float) -> None:
        """The step itself."""
        super()._update(parameter, grad, following, rate, weight_decay)


class Momentum(Steps, optim.Momentum):
    """accum = momentum * accum + grad; parameter -= learning_rate * accum (Nesterov: of grad + momentum * accum)."""

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate,
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
    ) -> None:
        optim.Momentum.__init__(
            self, self._begin(params, loss_scale), learning_rate, momentum, weight_decay, use_nesterov
        )


class SGD(Steps, optim.SGD):
    """parameter -= learning_rate * grad, or the steps of Momentum where `momentum` is not 0."""

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        loss_scale: float = 1.0,
    ) -> None:
        if dampening:
            raise ContextError(f"SGD: dampening is {dampening!r}; only 0 is offered here")
        optim.SGD.__init__(self, self._begin(params, loss_scale), learning_rate, momentum, weight_decay, nesterov)


class Adam(Steps, optim.Adam):
    """rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps); weight decay adds to the gradient."""

    form = "efficient"

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        use_amsgrad: bool = False,
    ) -> None:
        if use_nesterov or use_amsgrad:
            raise ContextError("Adam: use_nesterov and use_amsgrad are not offered here; leave them False")
        optim.Adam.__init__(self, self._begin(params, loss_scale), learning_rate, beta1, beta2, eps, weight_decay)


class AdamWeightDecay(Steps, optim.AdamW):
    """rate * (m / (sqrt(v) + eps) + weight_decay * parameter), without a correction of m and v for their begin at 0."""

    form, state_names = "uncorrected", ("adam_m", "adam_v")

    def __init__(
        self,
        params: Iterable[Any],
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        optim.AdamW.__init__(self, self._begin(params), learning_rate, beta1, beta2, eps, weight_decay)
