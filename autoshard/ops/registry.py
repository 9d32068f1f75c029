"""The operator registry: an operator is a rule, a numpy meaning and a gradient; all else derives from the rule.

    @operator("ReLU", rule="... -> ...")
    def relu(x):
        return np.maximum(x, 0)

    @relu.gradient
    def _(g, y, x):
        return relu_grad(g, y)

Positional parameters are operands (a `*xs` parameter takes any number), keyword-only ones are attributes, all but
`regions`, the bodies of a node, and `out`: memory for the result (for several a tuple), None if there is none to give.
In a call attributes may follow the operands by position, see `autoshard/ops/positional.py`.
Called with arrays, `relu(x)` computes; called with symbolic tensors it builds a node, through the hook
`__autoshard_apply__` that such tensors supply. So gradients and decompositions are written once, as plain calls.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from autoshard.core.rule import Rule, bind, decomposed, of_bools
from autoshard.core.tensortype import DType, TensorType, dtype, type_of
from autoshard.ops.attributes import OperatorPlacement, Types, hashable
from autoshard.ops.index_map import BoxMap
from autoshard.ops.options import Filling, OperatorOptions, Spreading, Storage, UnequalFlops, fitting, with_former
from autoshard.ops.positional import sort_call
from autoshard.ops.windows import Exchange
from autoshard.util.errors import RuleError, ShapeError, UnknownNameError, at
from autoshard.util.near import did_you_mean
from autoshard.util.source import caller

_REGISTRY: dict[str, Operator] = {}


class Operator:
    """What autoshard knows of one kind of operator; see the module's text for how to make one."""

    def __init__(self, name: str, run: Callable, options: OperatorOptions) -> None:
        self.name = name
        self.run = run
        self.options = options
        self.__doc__ = run.__doc__
        parameters = list(inspect.signature(run).parameters.values())
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.operand_names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY))
        keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        self.takes_regions = "regions" in keywords
        self.takes_out = "out" in keywords
        self.attributes: dict[str, Any] = {k: of for k, of in keywords.items() if k not in ("regions", "out")}
        self._gradient: Callable | None = None
        self._localize: Callable | None = None
        self._exchange: Callable | None = None
        self._decompose: Callable | None = None
        self._conservative: Callable | None = None
        self._index_map: Callable | None = None
        self._memo: dict[object, Any] = {}

    def __repr__(self) -> str:
        return f"<operator {self.name}>"

    def __reduce__(self) -> tuple:
        return lookup, (self.name,)

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        if self._is_mixed(operands):
            operands, attrs = sort_call(self, operands, attrs)
        try:
            attrs = self.check_attributes(attrs)
        except ShapeError as error:
            raise ShapeError(f"{error}{at(caller())}") from None
        for operand in operands:
            hook = getattr(operand, "__autoshard_apply__", None)
            if hook is not None:
                return hook(self, operands, attrs)
        arrays = [np.asarray(operand) for operand in operands]
        results = self.evaluate(arrays, attrs)
        return results[0] if len(results) == 1 else results

    def _is_mixed(self, arguments: Sequence[Any]) -> bool:
        """Whether the positional arguments of a call are not just the operands one by one."""
        if self.variadic:
            return bool(arguments) and isinstance(arguments[0], tuple | list | str)
        return len(arguments) != len(self.operand_names)

    # -- declarations that follow the definition

    def gradient(self, function: Callable) -> Callable:
        """Register `function(g, y, *operands, **attrs) -> cotangent per operand` (None: not differentiable).

        With several results g and y are tuples; a g may be None where nothing depends on that result.
        """
        self._gradient = function
        return function

    def localize(self, function: Callable) -> Callable:
        """Register `function(attrs, placement) -> attrs`: the attributes that the local call takes (sizes, Offsets)."""
        self._localize = function
        return function

    def exchange(self, function: Callable) -> Callable:
        """Register `function(attrs, placement) -> Exchange`: what a block reads of the operands, and how it then runs.

        Asked where a strategy splits a factor with `Factor.exchange`; other factors follow from `localize`.
        """
        self._exchange = function
        return function

    def decompose(self, function: Callable) -> Callable:
        """Register `function(*operands, **attrs)`: the same operator out of smaller ones.

        It is plain calls of operators, numerically stable also on blocks: where ranks split a factor that the
        operator's rule needs whole, they run these in its place and complete their sums among each other.
        """
        self._decompose = function
        self._memo.clear()
        return function

    def conservative(self, function: Callable) -> Callable:
        """Register `function(*shapes, **attrs)`, made like `rule`: the rule where nothing may be split unevenly."""
        self._conservative = function
        return function

    def maps_indices(self, function: Callable) -> Callable:
        """Register `function(*shapes, **attrs) -> Laid | None`: which elements of the operands lie where in the result.

        For operators that only move elements; None where that is no matter of boxes without gaps.
        """
        self._index_map = function
        return function

    # -- what follows from them

    @property
    def has_rule(self) -> bool:
        """Whether dims of operands and results belong together at all (not so for loops, branches, calls, ...)."""
        return self.options.rule is not None

    @cached_property
    def spread(self) -> str:
        """How eagerly shardings spread through the operator, one of SPREADS.

        Elementwise operators are recognized by their rule text unless the operator says otherwise.
        """
        if self.options.spread is not None:
            return self.options.spread
        rule = self.options.rule
        words = re.split(r"[,\s]+|->", rule) if isinstance(rule, str) else ["none"]
        return "pointwise" if set(words) <= {"...", "()", ""} and "..." in words else ""

    @property
    def constant(self) -> str:
        """'source' if it makes a value from nothing, 'fold' if it is one as soon as its operands are, else ''.

        Each use of such a value may be split in its own way. Pointwise operators fold.
        """
        return self.options.constant or ("fold" if self.spread == "pointwise" and self.options.effects is False else "")

    def has_effects(self, attrs: Mapping[str, Any]) -> bool:
        """Whether it does something besides its results, so that it must stay even where nobody uses them."""
        effects = self.options.effects
        return effects(attrs) if callable(effects) else effects

    @property
    def edges(self) -> Callable | None:
        """`function(node) -> data-flow edges`, for operators that hand values through regions or unchanged."""
        return self.options.edges

    @property
    def foreign(self) -> bool:
        """Whether Shardy has no rule for it although we have one."""
        return self.options.foreign

    @property
    def view(self) -> str:
        """How the result lies in the memory of the first operand, one of VIEWS; '' where it has memory of its own."""
        return self.options.view

    def scratch(self, rule: Rule | None, operands: Types, results: Types, attrs: Mapping[str, Any]) -> int:
        """Bytes that a call takes for a while besides operands and results, all of these local types.

        Where the operator does not say: nothing for views, elementwise operators, contractions and reductions (by the
        node's `rule`), which numpy does in one go, and for the others one more tensor as large as the largest.
        """
        given = self.options.scratch
        if callable(given):
            return int(given(operands, results, **attrs))
        if given is None:
            one_go = self.view or self.spread == "pointwise" or rule is not None and rule.contracted
            given = 0.0 if one_go else 1.0
        return int(given * max((of.nbytes for of in (*operands, *results)), default=0)) if given else 0

    @cached_property
    def over(self) -> tuple[tuple[int, ...], ...]:
        """For each result the operands in whose memory it may be made, as `out`, if nobody needs them any more."""
        elementwise = (tuple(range(len(self.operand_names))),) if self.takes_out else ()
        return elementwise if self.options.over is None else self.options.over

    @property
    def linear(self) -> tuple[tuple[int, ...], ...]:
        """Sets of operands in which the operator is linear together, () for all: terms of a sum in all of one set pass
        through. Those of a node are `linear_in`."""
        return self.options.linear

    def linear_in(self, operands: int) -> tuple[tuple[int, ...], ...]:
        """`linear` where there are so many operands: the sets of which all are there."""
        return fitting(self.options.linear, operands)

    @property
    def neutral(self) -> str:
        """How a reduction over a dim with padding comes out right.

        'yes': padding that holds the neutral element of the rule's reduction, in all operands that have the dim,
        changes nothing; so it is for linear operators. 'own': `localize` tells the operator what is padding
        (`Place.operand_valid`). Else '': it cannot run with such a dim split.
        """
        return self.options.neutral or ("yes" if self.options.linear else "")

    def fills(self, attrs: Mapping[str, Any]) -> Mapping[int, float]:
        """Operands whose padding must hold a certain number, wherever it lies: indices that have to be in range."""
        fills = self.options.fills
        return fills(attrs) if callable(fills) else fills

    @property
    def call_attributes(self) -> tuple[str, ...]:
        """Attributes that the primitive takes when called, not when made (MindSpore's ReduceSum()(x, axis))."""
        return self.options.call

    @property
    def differentiable(self) -> bool:
        return self._gradient is not None

    @property
    def decomposition(self) -> Callable | None:
        return self._decompose

    @property
    def runs_decomposed(self) -> bool:
        """Whether it runs as the operators of its decomposition where a factor is split that it needs whole."""
        return self._decompose is not None and self._exchange is None

    def check_attributes(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes with their defaults, values made hashable.

        Raises:
            ShapeError: an unknown attribute, or a required one missing.
        """
        for name in attrs:
            if name not in self.attributes:
                known = ", ".join(self.attributes) or "none"
                raise ShapeError(f"{self.name} has no attribute {name!r}; it has: {known}")
        full = {name: hashable(attrs.get(name, default)) for name, default in self.attributes.items()}
        for name, value in full.items():
            if value is inspect.Parameter.empty:
                raise ShapeError(f"{self.name} needs the attribute {name!r}")
        return full

    def rule(self, operands: Types, attrs: Mapping[str, Any]) -> Rule:
        """The factor rule bound to these operand types.

        Raises:
            ShapeError: the types do not fit the rule.
        """
        return self._remember("rule", self._rule, operands, attrs)

    def conservative_rule(self, operands: Types, attrs: Mapping[str, Any]) -> Rule:
        """The rule of conservative propagation, which never splits dims unevenly; mostly the rule itself.

        Raises:
            ShapeError: the types do not fit the rule.
        """
        if self._conservative is None:
            return self.rule(operands, attrs)
        return self._remember("conservative", self._conservative_rule, operands, attrs)

    def _rule(self, operands: Types, attrs: Mapping[str, Any]) -> Rule:
        rule = self._bound(self.options.rule, operands, attrs)
        rule = decomposed(rule) if self.runs_decomposed else rule
        return of_bools(rule) if rule.summed and self._gives_bools(operands, attrs) else rule

    def _gives_bools(self, operands: Types, attrs: Mapping[str, Any]) -> bool:
        kinds = [operand.dtype for operand in operands]
        return any(one.name == "bool" for one in kinds) and {*self.options.elements(kinds, attrs)} == {dtype("bool")}

    def _conservative_rule(self, operands: Types, attrs: Mapping[str, Any]) -> Rule:
        return self._bound(self._conservative, operands, attrs)

    def _bound(self, made: Any, operands: Types, attrs: Mapping[str, Any]) -> Rule:
        self._check_arity(operands)
        shapes = [operand.shape for operand in operands]
        if made is None:
            raise ShapeError(f"{self.name} has no rule: the dims of its operands and results do not belong together")
        try:
            if callable(made):
                made = made(*shapes, **attrs)
            sizes = None
            if isinstance(made, tuple):
                made, sizes = made
            return made if isinstance(made, Rule) else bind(made, shapes, sizes, self.name)
        except RuleError as error:
            raise ShapeError(f"{error}; operands {', '.join(map(str, operands))}") from None

    def result_types(self, operands: Types, attrs: Mapping[str, Any]) -> Types:
        """Types of the results.

        Raises:
            ShapeError: the operands do not fit.
        """
        return self._remember("types", self._result_types, operands, attrs)

    def _result_types(self, operands: Types, attrs: Mapping[str, Any]) -> Types:
        self._check_arity(operands)
        if self.options.shape is not None:
            shapes = self.options.shape(*(operand.shape for operand in operands), **attrs)
        else:
            rule = self.rule(operands, attrs)
            shapes = tuple(rule.result_shape(i) for i in range(len(rule.results)))
        elements = self.options.elements([operand.dtype for operand in operands], attrs)
        each = elements if len(elements) > 1 else elements * len(shapes)
        return tuple(TensorType.of(shape, one) for shape, one in zip(shapes, each, strict=True))

    def _check_arity(self, operands: Types) -> None:
        if not self.variadic and len(operands) != len(self.operand_names):
            names = ", ".join(self.operand_names)
            raise ShapeError(f"{self.name} takes {len(self.operand_names)} operands ({names}), not {len(operands)}")

    def flops(self, operands: Types, attrs: Mapping[str, Any]) -> float:
        """Floating point operations of the whole operator: work per index combination times their number.

        A contraction of two operands counts a multiplication and an addition. An operator without a rule has no index
        combinations; its `flops` tells the number of all, and none are known where it tells nothing.
        """
        weight = self.options.flops
        if not self.has_rule:
            return float(weight(*(operand.shape for operand in operands), **attrs)) if callable(weight) else 0.0
        rule = self.rule(operands, attrs)
        if weight is None:
            weight = 2.0 if rule.contracted and len(rule.operands) > 1 else 1.0
        elif callable(weight):
            weight = weight(*(operand.shape for operand in operands), **attrs)
        return weight * rule.work

    @property
    def uneven(self) -> bool:
        """Whether ranks with equal blocks may have unequal work."""
        return self.options.imbalance is not None

    def most_flops(self, operands: Types, local: Types, attrs: Mapping[str, Any]) -> float:
        """`flops` of the rank with the most work, for blocks of these types of the operands."""
        found = self.flops(local, attrs)
        return found * self.options.imbalance(operands, local, **attrs) if self.options.imbalance else found

    def local_attributes(self, attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
        """The attributes of the local call under the given layouts."""
        return dict(attrs) if self._localize is None else {**attrs, **self._localize(attrs, placement)}

    def exchanged(self, attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
        """The windows that ranks fetch before they run the operator on their blocks, and its attributes afterwards.

        Raises:
            ShapeError: its rule has factors that need an exchange, but the operator does not say which.
        """
        if self._exchange is None:
            raise ShapeError(f"{self.name} does not say what its blocks need of their neighbours")
        return self._exchange(attrs, placement)

    def evaluate(
        self, arrays: Sequence[np.ndarray], attrs: Mapping[str, Any], regions: tuple[Callable, ...] = ()
    ) -> tuple[np.ndarray, ...]:
        """Run the numpy meaning, with the bodies of the node as functions from arrays to tuples of arrays; results have
        exactly the inferred types."""
        types = self.result_types(tuple(type_of(array) for array in arrays), attrs)
        results = self.run(*arrays, **attrs, regions=regions) if self.takes_regions else self.run(*arrays, **attrs)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(np.asarray(result, dtype=of.dtype.numpy) for result, of in zip(results, types, strict=True))

    def index_map(self, operands: Types, attrs: Mapping[str, Any]) -> BoxMap | None:
        """Which elements of the operands lie where in the result, for operators that only move them; else None."""
        return None if self._index_map is None else self._index_map(*(of.shape for of in operands), **attrs)

    def cotangents(self, g: Any, y: Any, operands: Sequence[Any], attrs: Mapping[str, Any]) -> tuple:
        """Gradients for each operand, from the gradients of the results.

        Raises:
            ShapeError: the operator has no gradient.
        """
        if self._gradient is None:
            raise ShapeError(f"{self.name} has no gradient")
        grads = self._gradient(g, y, *operands, **attrs)
        return grads if isinstance(grads, tuple) else (grads,)

    def _remember(self, kind: str, compute: Callable, operands: Types, attrs: Mapping[str, Any]) -> Any:
        key = (kind, operands, tuple(attrs.items()), tuple(map(type, attrs.values())))
        if key not in self._memo:
            self._memo[key] = compute(operands, attrs)
        return self._memo[key]


def operator(
    name: str,
    *,
    rule: str | Callable | None,
    shape: Callable | None = None,
    dtype: str | DType | Callable | None = None,
    linear: Iterable[Iterable[int]] = (),
    flops: float | Callable[..., float] | UnequalFlops | None = None,
    call: Iterable[str] = (),
    spread: str | Spreading | None = None,
    constant: str = "",
    effects: bool | Callable[[Mapping[str, Any]], bool] = False,
    storage: Storage = Storage(),  # noqa: B008  (frozen)
    filling: Filling = Filling(),  # noqa: B008  (frozen)
    numbers: Iterable[str] = (),
    **former: Any,
) -> Callable[[Callable], Operator]:
    """Define and register an operator; decorates its numpy meaning.

    Args:
        name: MindSpore's name where MindSpore has the operator.
        rule: rule text, or `function(*shapes, **attrs)` returning a text, a (text, sizes) pair or a Rule; None if
            the dims of operands and results do not belong together (loops, branches, unknown operators).
        shape: `function(*shapes, **attrs) -> result shapes`, where the rule's factor sizes are not the result's dims.
        dtype: element type of the results (a tuple for several), or `function(*dtypes, **attrs)`; default promotion.
        linear: sets of operand indices in which the operator is linear together; () means all operands.
        flops: operations per index combination of the rule's factors, or `function(*shapes, **attrs)` that tells; an
            `UnequalFlops` where ranks have unequal work.
        call: attributes that the primitive class takes when called; with operands among them, the order of all.
        spread: one of SPREADS, recognized for elementwise rules; or a `Spreading` with more to say of propagation.
        constant: 'source' or 'fold', see `Operator.constant`.
        effects: it does something besides its results; or `function(attrs)` that tells.
        storage, filling: what it does with memory; what padding must hold, which operands may be written over.
        numbers: attributes that change what it computes, and no rule or price, whatever number they are.
        former: keywords that are fields of these values now.

    Raises:
        UnknownNameError: the name is taken, or that of an attribute.

    >>> import numpy as np
    >>> from autoshard.ops.registry import operator, remove
    >>> @operator("DoctestCube", rule="... -> ...")
    ... def cube(x):
    ...     return x**3
    >>> cube(np.array([1.0, 2.0]))
    array([1., 8.])
    >>> remove("DoctestCube")
    """
    now = {"flops": flops, "spread": spread, "storage": storage, "filling": filling}
    flops, spread, storage, filling = with_former(now, former).values()
    spreading = spread if isinstance(spread, Spreading) else Spreading(spread)
    count, imbalance = (flops.count, flops.imbalance) if isinstance(flops, UnequalFlops) else (flops, None)
    over = None if filling.over is None else tuple(map(tuple, filling.over))
    options = OperatorOptions(
        rule, shape, dtype, tuple(map(tuple, linear)), count, tuple(call), spreading.order, constant, effects,
        spreading.edges, spreading.foreign, storage.view, storage.scratch, filling.neutral, filling.fills or {}, over,
        imbalance, frozenset(numbers),
    )  # fmt: skip

    def define(run: Callable) -> Operator:
        if name in _REGISTRY:
            raise UnknownNameError(f"operator {name!r} is already defined; choose another name")
        if "of" in (made := Operator(name, run, options)).attributes:  # texts say types so: k.MatMul(x, w, of="f32")
            raise UnknownNameError(f"an attribute of operator {name!r} cannot be called 'of'; choose another name")
        return _REGISTRY.setdefault(name, made)

    return define


def lookup(name: str) -> Operator:
    """The operator of that name.

    Raises:
        UnknownNameError: none has it; the message lists the nearest names.
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    hint = did_you_mean(name, _REGISTRY, otherwise=f"; known are {', '.join(sorted(_REGISTRY))}")
    raise UnknownNameError(f"unknown operator {name!r}{hint}")


def is_operator(name: str) -> bool:
    """Whether an operator of that name is registered."""
    return name in _REGISTRY


def operators() -> tuple[Operator, ...]:
    """All registered operators, by name."""
    return tuple(_REGISTRY[name] for name in sorted(_REGISTRY))


def remove(name: str) -> None:
    """Take an operator out of the registry again (for tests of user-defined operators)."""
    lookup(name)
    del _REGISTRY[name]
