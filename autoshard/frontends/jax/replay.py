"""An imported program done again on tensors of a trace: called functions written out, nodes named after scopes.

A node is called after the names that the program gives to its place (`layers_0.attn.query`), in flax those of modules;
where there are none, after the parameter that it reads. It comes from the innermost source line outside of libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoshard.frontends.jax.capture import STOPPED
from autoshard.frontends.jax.places import NodeLocations
from autoshard.frontends.stablehlo.imported import Imported
from autoshard.ir.graph import Node, Value
from autoshard.ir.run import CALLS
from autoshard.layout.spec import Spec
from autoshard.ops.registry import lookup
from autoshard.trace.tensor import Recorder, TracedTensor

Known = dict[Value, TracedTensor]


class Replay:
    """Does a program again; each use of it adds new nodes.

    Args:
        imported: the program.
        names: what its inputs are called, where they are parameters; '' for others.
        top: a scope around all of it, which names leave out.
    """

    def __init__(self, imported: Imported, names: Sequence[str], top: str = "") -> None:
        self.imported = imported
        self.places = NodeLocations(imported, top)
        self.names = {value: name for value, name in zip(imported.graph.inputs, names, strict=True) if name}

    def __call__(self, recorder: Recorder, tensors: Sequence[Any]) -> list[TracedTensor]:
        """The outputs for these inputs, as nodes of the recorder."""
        graph = self.imported.graph
        held = {value: _tensor(recorder, one) for value, one in zip(graph.inputs, tensors, strict=True)}
        run = _Replaying(self, recorder)
        run.nodes(graph.nodes, held, "", None)
        return [held[value] for value in graph.outputs]


def _tensor(recorder: Recorder, one: Any) -> TracedTensor:
    return one if isinstance(one, TracedTensor) else recorder.tensor(recorder.lift(one))


class _Replaying:
    def __init__(self, replay: Replay, recorder: Recorder) -> None:
        self.recorder, self.names = recorder, replay.names
        self.places, self.functions = replay.places, replay.imported.graph.functions

    def nodes(self, nodes: Iterable[Node], held: Known, path: str, source: Any) -> None:
        for node in nodes:
            here, line = self.places.of(node, path)
            if node.op.name in CALLS or node.op.name == "NamedComputation":
                made = self.call(node, held, here, line or source)
            else:
                made = self.add(node, held, here or self.owner(node), line or source)
            held.update(zip(node.results, made, strict=True))

    def call(self, node: Node, held: Known, path: str, source: Any) -> list[TracedTensor]:
        """The results of what a node calls, whose nodes are added."""
        if node.op.name in CALLS:
            callee = self.functions[node.attrs["callee"]]
            args, nodes, outputs, inner = callee.inputs, callee.nodes, callee.outputs, {}
        else:
            (body,) = node.regions
            args, nodes, outputs, inner = body.args, body.nodes, body.outputs, dict(held)
        inner.update(zip(args, (held[value] for value in node.operands), strict=True))
        self.nodes(nodes, inner, path, source)
        return [inner[value] for value in outputs]

    def owner(self, node: Node) -> str:
        """The path of the first parameter that a node reads directly; '' if it reads none."""
        name = next((self.names[value] for value in node.operands if value in self.names), "")
        return name.rpartition(".")[0] or name

    def add(self, node: Node, held: Known, path: str, source: Any) -> Sequence[TracedTensor]:
        operands = [held[value] for value in node.operands]
        op, attrs = _plain(node)
        with self.recorder.at(path, source):  # type: ignore[attr-defined]
            regions = tuple(self.region(region, held, path, source) for region in node.regions)
            made = self.recorder.add(op, operands, attrs, regions)
        if node.given_rule is not None:
            last = self.recorder.builder.nodes.pop()
            self.recorder.builder.nodes.append(replace(last, regions=regions, given_rule=node.given_rule))
        return made

    def region(self, region: Any, held: Known, path: str, source: Any) -> Any:
        def body(*tensors: TracedTensor) -> list[Value]:
            inner = {**held, **dict(zip(region.args, tensors, strict=True))}
            self.nodes(region.nodes, inner, path, source)
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
