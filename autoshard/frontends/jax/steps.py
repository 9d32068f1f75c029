"""A step of training that differentiates and updates itself: what it trains and keeps, and its gradients.

step(params, state, x) -> (params, state, loss)       with params and state donated: a model of x that returns loss
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.frontends.jax.capture import Captured, capture
from autoshard.frontends.jax.checkpoints import Checkpoints
from autoshard.frontends.jax.sources import JaxSource, argument_names
from autoshard.frontends.jax.trees import is_array
from autoshard.ir.graph import PARAMETER, STATE, Graph, Value
from autoshard.trace.function import Traced
from autoshard.transform.along_batches import along_batches
from autoshard.transform.inner_gradients import differentiated, entering, holds_gradient
from autoshard.transform.recompute import recompute
from autoshard.transform.rewrites import plainly_written
from autoshard.transform.unroll import unrolled
from autoshard.util.errors import AutoshardError, GraphError

Path = tuple[Any, ...]

# -- what it keeps


def step_source(function: Callable, args: tuple, donated: Mapping[int, str]) -> tuple[JaxSource, tuple]:
    """A step as a model of its donated arguments, and the other ones.

    Args:
        donated: numbers of arguments, and where in the result their new values are, '' where that is to be found.

    Raises:
        GraphError: there are no such arguments.
    """
    signature = inspect.signature(function)
    names = [name for name, _ in argument_names(signature, args, {})]
    for number in donated:
        if not 0 <= number < len(args):
            raise GraphError(
                f"from_jax: donate_argnums has {number}, but {len(args)} arguments are given by position "
                f"({', '.join(names)}); they count from 0"
            )
    places = {names[i]: i for i in sorted(donated)}
    paths = {names[i]: path for i, path in donated.items()}
    held = {one: jax.tree.map(_as_array, args[i]) for one, i in places.items()}
    # What is compiled for itself may take numbers for arrays, and not again what it took once.
    function = function.__wrapped__ if hasattr(function, "lower") and hasattr(function, "__wrapped__") else function
    name = getattr(function, "__name__", type(function).__name__).replace("<lambda>", "step")

    def step(held: Mapping[str, Any], *others: Any, **kwargs: Any) -> tuple[Any, Any]:
        held = {
            one: held[one] for one in places
        }  # JAX sorts dicts by their keys; new values come in the arguments' order
        given, rest = dict(zip(places.values(), held.values(), strict=True)), iter(others)
        found = function(*(given[i] if i in given else next(rest) for i in range(len(args))), **kwargs)
        return _without_new(found, held, paths, name)

    others = tuple(one for i, one in enumerate(args) if i not in donated)
    left = [one for i, one in enumerate(signature.parameters.values()) if i not in donated]
    return JaxSource(step, held, (), held, "", name, "", signature.replace(parameters=left), is_step=True), others


def _as_array(leaf: Any) -> Any:
    return leaf if is_array(leaf) else jnp.asarray(leaf)


def _without_new(
    found: Any, held: Mapping[str, Any], paths: Mapping[str, str], step: str
) -> tuple[Any, dict[str, Any]]:
    """What a step returns without the new values of what it was given, and these."""
    if hasattr(found, "_asdict") and all(_kind(found) != _kind(tree) for tree in held.values()):
        found = found._asdict()  # a NamedTuple of what the step returns
    parts, new = dict(_parts(found)), {}
    for name in sorted(held, key=lambda one: not paths[one]):  # those whose place is known first
        alike = [one for one, other in held.items() if one not in new and _kind(other) == _kind(held[name])]
        fits = [path for path, part in parts.items() if _kind(part) == _kind(held[name])]
        path = _said(name, paths[name], fits, parts, step) if paths[name] else _found(name, alike, fits, step)
        new[name] = parts[path]
        parts = {other: part for other, part in parts.items() if other[: len(path)] != path}
    left = _left(found, (), parts)
    if not jax.tree.leaves(left):
        raise GraphError(
            f"from_jax: {step} returns nothing beside the new values of {' and '.join(held)}; return what a run is to "
            "tell, too, such as the loss"
        )
    return left, new


def _said(name: str, said: str, fits: Sequence[Path], parts: Mapping[Path, Any], step: str) -> Path:
    """The place of a new value that the caller has said."""
    known = {_shown(path): path for path in parts}
    which = f"from_jax: donate_argnums says that the new value of {name} is part {said!r} of what {step} returns"
    if said not in known:
        left = ", ".join(filter(None, known))
        raise GraphError(f"{which}, which has, without the new values of others, the parts {left}")
    if known[said] not in fits:
        right = f"; {' and '.join(map(_shown, fits))} would fit" if fits else ""
        raise GraphError(f"{which}, which is of another structure or type{right}")
    return known[said]


def _found(name: str, alike: Sequence[str], fits: Sequence[Path], step: str) -> Path:
    """The place of a new value: where a dict has it under the argument's name, else by structure and types."""
    if (name,) in fits:
        return (name,)
    if len(fits) != len(alike):
        which = f" ({', '.join(map(_shown, fits))})" if fits else ""
        raise GraphError(
            f"from_jax: {step} is to return a new value of each argument in donate_argnums, but of the structure "
            f"and types of {' and '.join(alike)} its result has {len(fits) or 'no'} parts{which}; return each once, "
            "nested and typed as it was given, and what is like it (such as gradients) in a structure of its own; or "
            "say where each is, as in donate_argnums={0: 0, 1: 2}"
        )
    return fits[0]


def _shown(path: Path) -> str:
    return ".".join(map(str, path))


def _parts(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """A result and the parts of tuples, lists and dicts in it, each with its place."""
    yield path, tree
    for key, one in _inside(tree):
        yield from _parts(one, (*path, key))


def _inside(tree: Any) -> list[tuple[Any, Any]]:
    if type(tree) in (tuple, list):
        return list(enumerate(tree))
    return list(tree.items()) if type(tree) is dict else []


def _kind(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((jnp.shape(one), jnp.result_type(one)) for one in leaves)


def _left(tree: Any, path: Path, parts: Mapping[Path, Any]) -> Any:
    """What a result is without the parts that are gone: where one part is left, that part."""
    if path not in parts:
        return ()
    pairs = [(key, one) for key, one in _inside(tree) if (*path, key) in parts]
    left = {key: _left(one, (*path, key), parts) for key, one in pairs}
    if not _inside(tree) or all(left[key] is one for key, one in pairs) and len(left) == len(_inside(tree)):
        return tree
    if len(left) == 1:
        return next(iter(left.values()))
    return left if type(tree) is dict else type(tree)(left.values())


# -- its gradients


def capture_step(function: Callable, leaves: Sequence[Any], gradients: str) -> Captured:
    """A step, with marks of the gradients that it takes if these are to be autoshard's."""
    if gradients == "autoshard":
        try:
            return capture(function, leaves, marked=True, gradients=True)
        except AutoshardError:
            raise
        except Exception:  # what people may do with JAX's own functions alone; an error of theirs is raised below
            pass
    return capture(function, leaves)


def with_own_gradients(traced: Traced, captured: Captured, checkpoints: Checkpoints) -> Traced:
    """A step with the gradients that its marks stand for.

    Raises:
        GraphError: an operator, or a function with a derivative of its own, of which only JAX knows the gradient.
    """
    if captured.own and entering(traced.graph):
        raise GraphError(f"only JAX knows the derivative of {', '.join(captured.own)}")

    def rewritten(graph: Graph) -> Graph:
        return plainly_written(unrolled(graph, holds_gradient), traced.annotations)

    graph = differentiated(traced.graph, rewritten)
    again = checkpoints.made_again(graph)
    graph = recompute(graph, again) if again else graph
    return _with_roles(replace(traced, graph=graph), traced)


def with_gradients_of_jax(traced: Traced, marked: Traced) -> Traced:
    """A step with the gradients that JAX made; the same step with marks tells what they are taken for."""
    graph = along_batches(traced.graph, traced.annotations)
    return _with_roles(replace(traced, graph=graph), marked)


def _with_roles(traced: Traced, marked: Traced) -> Traced:
    trained = {value.name for value in entering(marked.graph)}
    return replace(traced, graph=replace(traced.graph, roles=_roles(traced.graph, trained)))


def _roles(graph: Graph, trained: set[str]) -> tuple[str, ...]:
    """What inputs are: of those that are updated, parameters are differentiated for."""
    updated = {graph.inputs[into] for into in graph.updates.values()}

    def role(value: Value, before: str) -> str:
        if value not in updated:
            return before
        return PARAMETER if value.name in trained else STATE

    return tuple(role(value, before) for value, before in zip(graph.inputs, graph.roles, strict=True))
