"""jax.checkpoint (jax.remat): what a step of training makes again for its gradients, by the names of its operators.

Lowering forgets which equations stood in which checkpoint, and what its policy saves; `marked` writes both into the
scopes that equations bear, from where locations of StableHLO have them. `Checkpoints` then calls the operators of each
checkpoint by a path that no others have: that of the scopes which people or flax gave them (`layers_3`), else by a
number (`checkpoint_3`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from os.path import commonprefix
from typing import Any

import jax
from jax.ad_checkpoint import Recompute
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun, jaxprs_in_params
from jax.extend.core.primitives import name_p, remat_p

from autoshard.ir.graph import Graph, Node
from autoshard.transform.recompute import inside

ENTERED, SAVED = "autoshard_checkpoint_", "autoshard_saved"
"""Scopes of the equations of a checkpoint, with its number, and of those whose results its policy saves."""
_KEPT = "saved"
Words = tuple[str, ...]


@dataclass(frozen=True)
class CheckpointRun:
    """One run of a checkpoint: the calls that it is reached by, its scope, and whether it is in a region."""

    calls: tuple[Node, ...]
    scope: str
    in_loop: bool


# -- into the program


def with_checkpoints(traced: Any) -> Any:
    """What `jax.jit(function).trace` gave, with scopes for its checkpoints; itself if it has none."""
    noted = _Marker().closed(traced.jaxpr)
    if noted is traced.jaxpr:
        return traced
    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in noted.in_avals]
    return jax.jit(jaxpr_as_fun(noted), keep_unused=True).trace(*shapes)


class _Marker:
    def __init__(self) -> None:
        self.numbers = count()

    def closed(self, closed: Any) -> Any:
        jaxpr = self.jaxpr(closed.jaxpr)
        return closed if jaxpr is closed.jaxpr else ClosedJaxpr(jaxpr, closed.consts)

    def jaxpr(self, jaxpr: Any) -> Any:
        return _with(jaxpr, [self.equation(one) for one in jaxpr.eqns])

    def equation(self, eqn: Any) -> Any:
        if eqn.primitive is not remat_p or eqn.params["differentiated"]:
            return _inside(eqn, self.jaxpr)
        body = eqn.params["jaxpr"]
        policy = eqn.params["policy"]
        body = body if policy is None else _Saving(policy).jaxpr(body, ())
        eqn = _scoped(eqn, f"{ENTERED}{next(self.numbers)}")
        return eqn.replace(params={**eqn.params, "jaxpr": self.jaxpr(body)})


@dataclass(frozen=True)
class _Saving:
    """Notes the equations whose results a policy saves, at any depth."""

    policy: Callable

    def jaxpr(self, jaxpr: Any, outputs: Iterable[Any]) -> Any:
        """A jaxpr of whose results `outputs` are saved."""
        saved = {*outputs, *self._named(jaxpr)}
        return _with(jaxpr, [self.equation(one, saved) for one in jaxpr.eqns])

    def _named(self, jaxpr: Any) -> Iterator[Any]:
        """What is saved by its name (`checkpoint_name`), which is no operation of its own."""
        for eqn in jaxpr.eqns:
            if eqn.primitive is name_p and self.saves(eqn):
                yield from (one for one in eqn.invars if not hasattr(one, "val"))

    def equation(self, eqn: Any, saved: Collection[Any]) -> Any:
        places = [i for i, one in enumerate(eqn.outvars) if one in saved]
        if not any(_jaxprs(eqn)):
            return _scoped(eqn, SAVED) if places or self.saves(eqn) else eqn

        def body(jaxpr: Any) -> Any:
            own = jaxpr.outvars if len(jaxpr.outvars) == len(eqn.outvars) else ()
            return self.jaxpr(jaxpr, [own[i] for i in places if own and not hasattr(own[i], "val")])

        return _inside(eqn, body)

    def saves(self, eqn: Any) -> bool:
        case = self.policy(eqn.primitive, *(one.aval for one in eqn.invars), **eqn.params)
        return bool(case) and case is not Recompute


def _with(jaxpr: Any, eqns: list[Any]) -> Any:
    same = all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True))
    return jaxpr if same else jaxpr.replace(eqns=eqns)


def _scoped(eqn: Any, scope: str) -> Any:
    info = eqn.source_info
    return eqn.replace(source_info=info.replace(name_stack=info.name_stack.extend(scope)))


def _inside(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """An equation with other jaxprs in its parameters; itself if none changes."""

    def changed(value: Any) -> Any:
        if isinstance(value, tuple | list):
            parts = [changed(one) for one in value]
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else type(value)(parts)
        if isinstance(value, ClosedJaxpr):
            jaxpr = change(value.jaxpr)
            return value if jaxpr is value.jaxpr else ClosedJaxpr(jaxpr, value.consts)
        return change(value) if hasattr(value, "eqns") and hasattr(value, "outvars") else value

    params = {name: changed(value) for name, value in eqn.params.items()}
    same = all(params[name] is value for name, value in eqn.params.items())
    return eqn if same else eqn.replace(params=params)


def _jaxprs(eqn: Any) -> Iterator[Any]:
    return jaxprs_in_params(eqn.params)


# -- out of the program


@dataclass
class Checkpoints:
    """The paths of operators, with what tells each run of a checkpoint apart.

    Attributes:
        called: the words that stand for the scope of a run: none where its operators have a path of their own.
        paths: the paths of all runs; loops that are written out put turns before them.
    """

    called: dict[CheckpointRun, Words] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, placed: Iterable[tuple[Words, CheckpointRun | None]]) -> Checkpoints:
        """Those of a program, from the words of each operator and the run that it is in."""
        found = cls()
        runs: dict[CheckpointRun, list[Words]] = {}
        begins: Counter[Words] = Counter()
        for words, run in placed:
            plain = _plain(words)
            begins.update(plain[: i + 1] for i in range(len(plain)))
            if run is not None:
                runs.setdefault(run, []).append(plain)
        numbers = count()
        for run, of_run in runs.items():
            own = tuple(commonprefix(of_run))
            if run.in_loop or not own or begins[own] != len(of_run):
                found.called[run] = own = (f"checkpoint_{next(numbers)}",)
            else:
                found.called[run] = ()
            found.paths.append(".".join(own))
        return found

    def path(self, words: Words, run: CheckpointRun | None) -> str:
        """What an operator is called after."""
        here = _last_scope(words)
        if run is None or here is None:
            return ".".join(_shown(words))
        return ".".join((*_shown(words[:here]), *self.called[run], *_shown(words[here:])))

    def made_again(self, graph: Graph) -> tuple[Node, ...]:
        """The operators of a step's forward pass that its gradients make again."""
        if not self.paths:
            return ()
        pattern = re.compile(rf"^(?:.*?\.)?(?:{'|'.join(map(re.escape, self.paths))})(?=\.)")
        matches = (pattern.match(node.label) for node in graph.nodes)
        found = inside(graph, {match[0] for match in matches if match})
        return tuple(node for node in found if _KEPT not in node.label.split(".") and _can_be(node))


def run_of(
    words: Words, around: Words, run: CheckpointRun | None, calls: tuple[Node, ...], in_loop: bool
) -> CheckpointRun | None:
    """The run of a checkpoint that an operator is in: its own, or that of what is around it.

    Args:
        words: its own, which begin with those `around`; what stands in a region repeats the scopes of the region.
        run: that of what is around.
        calls: what it is reached by.
        in_loop: whether it is in a region, of which all turns have the same words.
    """
    here, outside = _last_scope(words), _last_scope(around)
    if here is None or (outside is not None and words[here] == around[outside]):
        return run
    return CheckpointRun(calls, words[here], in_loop)


def _last_scope(words: Words) -> int | None:
    return max((i for i, word in enumerate(words) if word.startswith(ENTERED)), default=None)


def _plain(words: Words) -> Words:
    return tuple(word for word in words if not word.startswith(ENTERED) and word != SAVED)


def _shown(words: Words) -> Words:
    return tuple(_KEPT if word == SAVED else word for word in words if not word.startswith(ENTERED))


def _can_be(node: Node) -> bool:
    return not node.regions and not node.op.has_effects(node.attrs)
