"""`jax.grad`, `jax.value_and_grad` and `jax.vjp` in a function that is captured: marks in the place of their results.

    loss, grads = jax.value_and_grad(f)(params)     ->     entered = enter(params)
                                                           loss = f(entered)
                                                           grads = gradient(entered, loss, 1)

So `transform.inner_gradients` can differentiate `f` by the operators' own gradients, as it is done for a model that is
given with its loss. A mark means what JAX computes: outside of a capture, and under any other transformation
(`jax.vmap` of a gradient, its derivative), it is dissolved into that. Gradients inside of what is differentiated are
JAX's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir.dialects import stablehlo

from autoshard.transform.inner_gradients import ENTERED, GRADIENT

_TAKEN: ContextVar[bool] = ContextVar("taken", default=False)
_LOWERED: ContextVar[bool] = ContextVar("lowered", default=False)
_VJP = jax.vjp
# What `jax.jit` has traced outside has no marks, and what it traces inside is not used outside.
_APART = jax.make_user_context(default_value=False)
# Where the functions of JAX look it up, under whatever name people have taken them from there.
_PLACES: tuple[dict[str, Any], ...] = (jax.__dict__, inspect.unwrap(jax.value_and_grad).__globals__)


@contextmanager
def marked_gradients() -> Iterator[None]:
    """What is traced and lowered inside has marks in the place of gradients."""
    places = [one for one in _PLACES if one.get("vjp") is _VJP]
    tokens = _TAKEN.set(True), _LOWERED.set(True)
    for place in places:
        place["vjp"] = _vjp
    try:
        with _APART(True):
            yield
    finally:
        for place in places:
            place["vjp"] = _VJP
        _TAKEN.reset(tokens[0])
        _LOWERED.reset(tokens[1])


def _vjp(fun: Callable, *primals: Any, has_aux: bool = False, **options: Any) -> Any:
    """`jax.vjp`, with marks."""
    leaves, structure = jax.tree.flatten(primals)
    if not _TAKEN.get() or not leaves or not all(map(_is_real, leaves)) or any(options.values()):
        return _VJP(fun, *primals, has_aux=has_aux, **options)
    entered = [_enter.bind(jnp.asarray(one)) for one in leaves]
    token = _TAKEN.set(False)
    try:
        part = _TakenPart.of(fun, jax.tree.unflatten(structure, entered), has_aux)
    finally:
        _TAKEN.reset(token)
    if not all(map(_is_real, part.outputs)):
        return _VJP(fun, *primals, has_aux=has_aux)

    def pulled(*cotangents: Any) -> Any:
        (cotangent,) = cotangents
        given = jax.tree.leaves(cotangent)
        made = _gradient.bind(
            *part.constants, *entered, *part.outputs, *map(jnp.asarray, given), part=part.differentiated
        )
        return jax.tree.unflatten(structure, made)

    found = jax.tree.unflatten(part.of_outputs, part.outputs)
    return (found, pulled, part.aux) if has_aux else (found, pulled)


def _is_real(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


@dataclass(frozen=True, eq=False)
class _OfFunction:
    """What a mark of a gradient stands for: a function's, of which the first `outputs` results are differentiated."""

    function: Callable
    constants: int
    inputs: int
    outputs: int

    def by_jax(self, *operands: Any) -> list[Any]:
        """Constants, inputs, results, and a cotangent for each result -> a gradient for each input."""
        constants, rest = operands[: self.constants], operands[self.constants :]
        inputs, cotangents = rest[: self.inputs], rest[self.inputs + self.outputs :]
        token = _TAKEN.set(False)
        try:
            _, pull = _VJP(lambda *given: self.function(*constants, *given)[: self.outputs], *inputs)
            return [*pull([*cotangents])]
        finally:
            _TAKEN.reset(token)


@dataclass(frozen=True, eq=False)
class _TakenPart:
    """A function that is differentiated, traced once and written in its place.

    Attributes:
        constants: what it takes from outside.
        outputs: what is differentiated, flat; `of_outputs` is how it nests.
        aux: what else it returns.
    """

    differentiated: _OfFunction
    constants: Sequence[Any]
    outputs: Sequence[Any]
    of_outputs: Any
    aux: Any

    @classmethod
    def of(cls, fun: Callable, entered: tuple, has_aux: bool) -> _TakenPart:
        leaves, structure = jax.tree.flatten(entered)
        nested: list[Any] = []

        def flat(*given: Any) -> list[Any]:
            found = fun(*jax.tree.unflatten(structure, given))
            found, aux = found if has_aux else (found, ())
            pair = jax.tree.flatten(found), jax.tree.flatten(aux)
            nested[:] = (of for _, of in pair)
            return [one for made, _ in pair for one in made]

        closed = jax.make_jaxpr(flat)(*leaves)
        made = jaxpr_as_fun(closed)(*leaves)
        count = nested[0].num_leaves
        constants = len(closed.consts)

        def function(*given: Any) -> list[Any]:
            return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, given[:constants]))(*given[constants:])

        of = _OfFunction(function, constants, len(leaves), count)
        return cls(of, closed.consts, made[:count], nested[0], jax.tree.unflatten(nested[1], made[count:]))


# -- the marks

_enter = Primitive("autoshard_enter")
_enter.def_impl(lambda x: x)
_enter.def_abstract_eval(lambda x: x)
ad.primitive_jvps[_enter] = lambda primals, tangents: (_enter.bind(*primals), *tangents)
batching.primitive_batchers[_enter] = lambda values, dims: (*values, *dims)


def _lower_enter(context: Any, x: Any) -> list[Any]:
    return [stablehlo.custom_call([x.type], [x], call_target_name=ENTERED)] if _LOWERED.get() else [x]


mlir.register_lowering(_enter, _lower_enter)

_gradient = Primitive("autoshard_gradient")
_gradient.multiple_results = True


def _by_jax(*operands: Any, part: _OfFunction) -> list[Any]:
    return part.by_jax(*operands)


def _types(*types: Any, part: _OfFunction) -> list[Any]:
    return [one.update(weak_type=False) for one in types[part.constants : part.constants + part.inputs]]


def _derivative(primals: Sequence[Any], tangents: Sequence[Any], *, part: _OfFunction) -> tuple[Any, Any]:
    return jax.jvp(part.by_jax, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))


def _over_batch(values: Sequence[Any], dims: Sequence[Any], *, part: _OfFunction) -> tuple[Any, Any]:
    made = jax.vmap(part.by_jax, tuple(dims))(*values)
    return made, (0,) * len(made)


def _lower_gradient(context: Any, *operands: Any, part: _OfFunction) -> Sequence[Any]:
    if not _LOWERED.get():
        return mlir.lower_fun(_by_jax, multiple_results=True)(context, *operands, part=part)
    own = operands[part.constants :]
    types = [one.type for one in own[: part.inputs]]
    made = stablehlo.custom_call(types, own, call_target_name=f"{GRADIENT}{part.inputs}")
    return made if isinstance(made, Sequence) else [made]


_gradient.def_impl(_by_jax)
_gradient.def_abstract_eval(_types)
ad.primitive_jvps[_gradient] = _derivative
batching.primitive_batchers[_gradient] = _over_batch
mlir.register_lowering(_gradient, _lower_gradient)
