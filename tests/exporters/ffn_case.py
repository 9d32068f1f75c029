"""The tutorial's feed forward network, planned by hand: graph, plan and program for tests of dumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.core.place import parse_strategy
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import PARAMETER, Builder, Graph, Source, Value
from autoshard.layout import Layout, Mesh
from autoshard.ops.registry import lookup
from autoshard.plan.plan import CONFIGURED, PROPAGATED, Cause, Decision, Option, Plan

MATMUL = Source("train.py", 33, "x = self.matmul(x, self.weight)")
ADD = Source("train.py", 34, "x = self.add(x, self.bias)")
RELU = Source("train.py", 48, "x = self.relu(x)")

TUTORIAL = {
    "dense1.matmul": ((2, 1), (1, 4)),
    "dense1.add": ((2, 4), (4,)),
    "relu": ((2, 4),),
    "dense2.matmul": ((2, 4), (4, 1)),
    "dense2.add": ((2, 4), (4,)),
}


def ffn(batch: int = 64, width: int = 64, hidden: int = 64) -> Graph:
    """MatMul, Add, ReLU, MatMul, Add with the tutorial's names and lines."""
    builder = Builder("ffn")
    x = builder.input(TensorType.of((batch, width)), "x")
    w1 = builder.input(TensorType.of((width, hidden)), "dense1.weight", PARAMETER)
    b1 = builder.input(TensorType.of((hidden,)), "dense1.bias", PARAMETER)
    w2 = builder.input(TensorType.of((hidden, width)), "dense2.weight", PARAMETER)
    b2 = builder.input(TensorType.of((width,)), "dense2.bias", PARAMETER)
    y = add(builder, "MatMul", [x, w1], "dense1.matmul", MATMUL)
    y = add(builder, "Add", [y, b1], "dense1.add", ADD)
    y = add(builder, "ReLU", [y], "relu", RELU)
    y = add(builder, "MatMul", [y, w2], "dense2.matmul", MATMUL)
    y = add(builder, "Add", [y, b2], "dense2.add", ADD)
    return builder.build([y])


def add(
    builder: Builder,
    op: str,
    operands: Sequence[Value],
    name: str,
    source: Source | None = None,
    **attrs: object,
) -> Value:
    """Append a node and return its first result."""
    made = lookup(op)
    return builder.add(made, operands, made.check_attributes(attrs), name, source).results[0]


def plan_by_hand(
    graph: Graph,
    mesh: Mesh,
    given: Mapping[str, tuple],
    configured: Sequence[str] = (),
    outputs: Sequence[Layout] | None = None,
) -> Plan:
    """The plan with these strategies; inputs lie as their first user wants them, data is whole."""
    layouts: dict[Value, Layout] = {
        value: Layout.replicated(mesh, value.type.rank)
        for value in graph.inputs
        if graph.role_of[value] != PARAMETER or not graph.users[value]
    }
    decisions = {}
    for node in graph.nodes:
        shapes = [of.shape for of in node.operand_types]
        strategy = parse_strategy(node.rule, given[node.label], mesh, shapes, node.label)
        cause = Cause(CONFIGURED if node.label in configured else PROPAGATED)
        decisions[node] = Decision(Option(strategy, 0.0, 0.0, 0.0), cause)
        for value, layout in zip(node.operands, strategy.operand_layouts, strict=True):
            layouts.setdefault(value, layout)
        layouts.update(zip(node.results, strategy.result_layouts, strict=True))
    left = outputs or [layouts[graph.tied.get(value, value)].final() for value in graph.outputs]
    return Plan(graph, mesh, decisions, layouts, tuple(left))
