"""An imported program done again on tensors of a trace: called functions written out, nodes named after scopes.

A node is called after the names that the program gives to its place (`layers_0.attn.query`), in flax those of modules;
where there are none, after the parameter that it reads. It comes from the innermost source line outside of libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autoshard import ops
from autoshard.frontends.jax.capture import STOPPED
from autoshard.frontends.jax.checkpoints import CheckpointRun, Checkpoints, Words, run_of
from autoshard.frontends.jax.places import NodeLocations
from autoshard.frontends.stablehlo.imported import Imported
from autoshard.ir.graph import Node, Value
from autoshard.ir.run import CALLS
from autoshard.layout.spec import Spec
from autoshard.ops.registry import lookup
from autoshard.trace.tensor import Recorder, TracedTensor
from autoshard.transform.inner_gradients import is_entry

Known = dict[Value, TracedTensor]


class Replay:
    """Does a program again; each use of it adds new nodes.

    Args:
        imported: the program.
        names: what its inputs are called, where they are parameters; '' for others.
        top: a scope around all of it, which names leave out.
        by_elements: whether choices between two branches that compute elements alone are made for each element, of
            both, so that their values can lie in parts.
    """

    def __init__(self, imported: Imported, names: Sequence[str], top: str = "", by_elements: bool = False) -> None:
        self.imported, self.by_elements = imported, by_elements
        self.places = NodeLocations(imported, top)
        self.names = {value: name for value, name in zip(imported.graph.inputs, names, strict=True) if name}
        for node in imported.graph.nodes:
            if is_entry(node) and node.operands[0] in self.names:
                self.names[node.results[0]] = self.names[node.operands[0]]

    def __call__(self, recorder: Recorder, tensors: Sequence[Any]) -> list[TracedTensor]:
        """The outputs for these inputs, as nodes of the recorder."""
        graph = self.imported.graph
        held = {value: _tensor(recorder, one) for value, one in zip(graph.inputs, tensors, strict=True)}
        run = _Replaying(self, recorder)
        run.nodes(graph.nodes, held, Surroundings())
        return [held[value] for value in graph.outputs]

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """What tells apart the operators that each checkpoint makes again."""
        return Checkpoints.of(self._placed(self.imported.graph.nodes, Surroundings()))

    def _placed(self, nodes: Iterable[Node], around: Surroundings) -> Iterator[tuple[Words, CheckpointRun | None]]:
        for node in nodes:
            here = self.at(node, around)
            if is_call(node):
                yield from self._placed(self.called(node).nodes, here.inside(node))
                continue
            if node.operands:  # constants stand at the checkpoint itself
                yield here.words, here.run
            for region in node.regions:
                yield from self._placed(region.nodes, here.inside(node))

    def at(self, node: Node, around: Surroundings) -> Surroundings:
        """Where a node stands."""
        words, line = self.places.of(node)
        words = (*around.words, *words) or (() if is_call(node) else self.owner(node))
        run = run_of(words, around.words, around.run, around.calls, around.in_loop)
        return replace(around, words=words, source=line or around.source, run=run)

    def owner(self, node: Node) -> Words:
        """The words of the first parameter that a node reads directly; none if it reads none."""
        name = next((self.names[value] for value in node.operands if value in self.names), "")
        return tuple(filter(None, (name.rpartition(".")[0] or name).split(".")))

    def called(self, node: Node) -> Any:
        """What a node calls."""
        return self.imported.graph.functions[node.attrs["callee"]] if node.op.name in CALLS else node.regions[0]


@dataclass(frozen=True)
class Surroundings:
    """Where nodes stand: the names of what is around them, the user's line, the run of a checkpoint, and the calls that
    they are reached by."""

    words: Words = ()
    source: Any = None
    run: CheckpointRun | None = None
    calls: tuple[Node, ...] = ()
    in_loop: bool = False

    def inside(self, node: Node) -> Surroundings:
        """Those of what a node calls, or holds."""
        return replace(self, calls=(*self.calls, node)) if is_call(node) else replace(self, in_loop=True)


def is_call(node: Node) -> bool:
    """Whether what a node calls is written in its place."""
    return node.op.name in CALLS or node.op.name == "NamedComputation"


def _tensor(recorder: Recorder, one: Any) -> TracedTensor:
    return one if isinstance(one, TracedTensor) else recorder.tensor(recorder.lift(one))


class _Replaying:
    def __init__(self, replay: Replay, recorder: Recorder) -> None:
        self.replay, self.recorder = replay, recorder

    def nodes(self, nodes: Iterable[Node], held: Known, around: Surroundings) -> None:
        for node in nodes:
            here = self.replay.at(node, around)
            make = self.call if is_call(node) else self.choose if self._is_by_elements(node) else self.add
            made = make(node, held, here)
            held.update(zip(node.results, made, strict=True))

    def call(self, node: Node, held: Known, here: Surroundings) -> list[TracedTensor]:
        """The results of what a node calls, whose nodes are added."""
        callee = self.replay.called(node)
        inner = {} if node.op.name in CALLS else dict(held)
        args = callee.inputs if node.op.name in CALLS else callee.args
        inner.update(zip(args, (held[value] for value in node.operands), strict=True))
        self.nodes(callee.nodes, inner, here.inside(node))
        return [inner[value] for value in callee.outputs]

    def _is_by_elements(self, node: Node) -> bool:
        """Whether a node is a choice between two branches that compute elements alone."""
        wanted = self.replay.by_elements and node.op.name == "Case" and len(node.regions) == 2
        return wanted and all(self._elements_alone(region.nodes) for region in node.regions)

    def _elements_alone(self, nodes: Iterable[Node]) -> bool:
        for node in nodes:
            if is_call(node):
                alone = self._elements_alone(self.replay.called(node).nodes)
            elif node.regions or node.op.has_effects(node.attrs):
                alone = False
            else:
                spreads = node.op.name == "BroadcastInDim" and node.operand_types[0].rank == 0
                alone = spreads or not node.operands or node.op.spread == "pointwise"
            if not alone:
                return False
        return True

    def choose(self, node: Node, held: Known, here: Surroundings) -> list[TracedTensor]:
        """The results of both branches, and for each element which of them counts."""
        made = []
        for region in node.regions:
            inner = dict(held)
            self.nodes(region.nodes, inner, here)
            made.append([inner[value] for value in region.outputs])
        path = self.replay.checkpoints.path(here.words, here.run)
        with self.recorder.at(path, here.source):  # type: ignore[attr-defined]
            second = ops.not_equal(held[node.operands[0]], 0)
            return [ops.select(second, two, one) for one, two in zip(*made, strict=True)]

    def add(self, node: Node, held: Known, here: Surroundings) -> Sequence[TracedTensor]:
        operands = [held[value] for value in node.operands]
        op, attrs = _plain(node)
        path = self.replay.checkpoints.path(here.words, here.run)
        with self.recorder.at(path, here.source):  # type: ignore[attr-defined]
            regions = tuple(self.region(region, held, here.inside(node)) for region in node.regions)
            made = self.recorder.add(op, operands, attrs, regions)
        if node.given_rule is not None:
            last = self.recorder.builder.nodes.pop()
            self.recorder.builder.nodes.append(replace(last, regions=regions, given_rule=node.given_rule))
        return made

    def region(self, region: Any, held: Known, around: Surroundings) -> Any:
        def body(*tensors: TracedTensor) -> list[Value]:
            inner = {**held, **dict(zip(region.args, tensors, strict=True))}
            self.nodes(region.nodes, inner, around)
            return [inner[value].value for value in region.outputs]

        types = [value.type for value in region.args]
        return self.recorder.region(body, types, "arg", names=[_last(value.name) for value in region.args])


def _last(name: str) -> str:
    return re.sub(r"\W+", "_", name.rpartition(".")[2]).strip("_")


def _plain(node: Node) -> tuple[Any, Mapping[str, Any]]:
    """The operator and attributes of a node, in the words of a trace: shardings know no mesh yet."""
    attrs = node.attrs
    if attrs.get("target") == STOPPED:
        return lookup("StopGradient"), {}
    if node.op.name in ("ShardingConstraint", "Reshard"):
        on = attrs["sharding"].mesh
        if not on.axes and not on.is_maximal:  # JAX's own, where no mesh is set: it asks for nothing
            return lookup("Identity"), {}
        return lookup("ShardingConstraint"), {"sharding": str(Spec.of(attrs["sharding"], node.label))}
    return node.op, attrs
