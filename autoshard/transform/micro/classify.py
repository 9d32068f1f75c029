"""Which form each value of a training step has when it is cut into micro batches, by the rules of the operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import DATA, Builder, Graph, Node, Value
from autoshard.ir.verify import describe
from autoshard.layout.mesh import Mesh
from autoshard.ops.attention_blocks import KEY, QUERY
from autoshard.ops.hlo_shape import iota
from autoshard.ops.random import dropout, dropout_rows
from autoshard.ops.registry import Operator
from autoshard.transform.micro.cuts import AXIS, Cut, MicroRefusal, cut_at, cut_by, cut_statistics
from autoshard.transform.micro.forms import LATE, ONCE, OWN, Form, MicroPartial, MicroRows, factor_of, local
from autoshard.transform.micro.statistics import BATCH, COMPOSITES, MICRO_BATCH, OwnStatistics
from autoshard.util.errors import GraphError

NO_ROWS: Mapping[Value, MicroRows] = MappingProxyType({})
_OTHERWISE = f"statistics={MICRO_BATCH!r} takes them of each micro batch instead"


def is_barrier(node: Node) -> bool:
    """Whether a node passes on what it gets as it is."""
    return node.op.name == "OptimizationBarrier"


def with_single_barriers(graph: Graph) -> Graph:
    """The graph with a barrier of its own for each value of one that holds several back at once."""

    def apart(node: Node) -> list[Node]:
        if not is_barrier(node) or len(node.operands) == 1:
            return [node]
        pairs = zip(node.operands, node.results, strict=True)
        return [replace(node, operands=(value,), results=(result,)) for value, result in pairs]

    return replace(graph, nodes=tuple(one for node in graph.nodes for one in apart(node)))


@dataclass
class Forms:
    """The forms of the values of a graph, and how the nodes of the loop run. `whole` are values that follow from data
    alone and are needed for the whole batch before the first micro batch: they are made once more, from all data.
    `carried` are states that go from micro batch to micro batch, and the outputs that they become.
    """

    graph: Graph
    parts: int
    of: dict[Value, Form]
    cuts: dict[Node, Cut]
    whole: set[Value]
    carried: Mapping[Value, Value] = field(default_factory=dict)


def classify(graph: Graph, parts: int, statistics: str = BATCH, rows: Mapping[Value, MicroRows] = NO_ROWS) -> Forms:
    """The forms of all values of a training step.

    The batch is dim 0 of the data inputs, of all that have as many rows as the first; or where the `rows` are that are
    given for inputs.

    Args:
        statistics: whose statistics are taken, see `micro.statistics`.

    Raises:
        GraphError: the rows cannot be dealt out evenly, or an operator needs the whole batch at once.
    """
    if statistics != MICRO_BATCH:
        return _Classifier(graph, parts, None, rows).run()
    own = OwnStatistics(graph, parts)
    while True:
        known = own.size
        forms = _Classifier(graph, parts, own).run()
        if own.size == known:
            own.check_states(forms.of)
            return forms


class _Classifier:
    def __init__(
        self, graph: Graph, parts: int, own: OwnStatistics | None, rows: Mapping[Value, MicroRows] = NO_ROWS
    ) -> None:
        self.graph, self.parts, self.mesh, self.own, self.rows = graph, parts, Mesh(((AXIS, parts),)), own, rows
        self.forms = Forms(graph, parts, {}, {}, set())
        self.from_data: set[Value] = set()
        self.makers = {value: node for node in graph.nodes for value in node.results}
        self.builder = Builder.after(graph, graph.name)
        self.numbered: dict[tuple[int, ...], Value] = {}

    def run(self) -> Forms:
        self._inputs()
        nodes = []
        for original in self.graph.nodes:
            for node in self._by_rows(original):
                nodes.append(node)
                if self._follows_from_data(node):
                    self.from_data.update(node.results)
                self._node(node, original)
        self.forms.graph = replace(self.graph, nodes=tuple(nodes))
        self._carry()
        return self.forms

    def _follows_from_data(self, node: Node) -> bool:
        """Whether a node can run before the first micro batch: it needs data alone, or, where it has no rows of it,
        also what is there once (a count of labels by a scale of the loss)."""
        if any(map(self._is_own, node.uses)):
            return False
        from_data = [value in self.from_data for value in node.uses]
        forms = [self.forms.of[value] for value in node.uses]
        if all(from_data) or not any(from_data) or any(isinstance(form, MicroRows) for form in forms):
            return all(from_data)
        return all(known or form == ONCE for known, form in zip(from_data, forms, strict=True))

    def _carry(self) -> None:
        """Let states that the forward pass writes become what each micro batch has, but for rows of the batch."""
        if self.own is None:
            return
        for state, new in dict(self.own.states).items():
            if isinstance(self.forms.of[new], MicroRows):
                del self.own.states[state]
            elif self.forms.of[new] != OWN:
                self.own.add(new, self.forms.of, self.makers[new])
        self.forms.carried = dict(self.own.states)

    def _by_rows(self, node: Node) -> list[Node]:
        """A node, or what tells it which rows it has: dropout, which draws by the place of an element in the batch."""
        if node.op is dropout:
            return self._dropped(node, 0, dropout_rows)
        if node.op.name in QUERY and node.attrs["dropout"]:
            return self._dropped(node, QUERY[node.op.name], node.op)
        return [node]

    def _dropped(self, node: Node, operand: int, op: Operator) -> list[Node]:
        """The node, as operator `op`, with the numbers of the rows that its operand has of the batch."""
        of, form = node.operands[operand], self.forms.of[node.operands[operand]]
        if not isinstance(form, MicroRows) or node.attrs["whole"]:
            return [node]
        if op is not dropout_rows and form.dim >= of.type.rank - 2:
            raise self._refusal(
                node,
                "drops weights of queries that lie along the batch; leave micro batches out, or dropout, or have the "
                "batch before heads and queries",
            )
        size = (of.type.shape[form.dim],)
        found = [] if size in self.numbered else [self._numbers(size)]
        if op is dropout_rows:
            more = {"dim": form.dim, "whole": of.type.shape}
        else:
            more = {"rows": form.dim, "whole": (*of.type.shape[:-1], node.operands[KEY[op.name]].type.shape[-2])}
        attrs = op.check_attributes({**node.attrs, **more})
        return [*found, replace(node, op=op, operands=(*node.operands, self.numbered[size]), attrs=attrs)]

    def _numbers(self, size: tuple[int]) -> Node:
        """The numbers of so many rows."""
        attrs = iota.check_attributes({"shape": size, "dim": 0})
        self.numbered[size] = Value(TensorType.of(size, attrs["dtype"]), self.builder.unique("micro_batches.rows"))
        made = Node(iota, (), attrs, (self.numbered[size],))
        self.makers[self.numbered[size]] = made
        return made

    def _inputs(self) -> None:
        graph, of = self.graph, self.forms.of
        if self.rows:
            of.update({**dict.fromkeys(graph.inputs, ONCE), **self.rows})
            return
        data = [value for value, role in zip(graph.inputs, graph.roles, strict=True) if role == DATA]
        self.from_data.update(data)
        batched = [value for value in data if value.type.rank]
        if not batched:
            raise GraphError(f"{graph.name!r} cannot be cut into micro batches: no data input has a batch dim")
        rows = batched[0].type.shape[0]
        if rows % self.parts or not rows:
            fitting = [str(count) for count in range(1, rows + 1) if rows % count == 0]
            shown = ", ".join(fitting if len(fitting) < 12 else [*fitting[:5], "...", *fitting[-2:]])
            raise GraphError(
                f"{graph.name!r} cannot be cut into {self.parts} micro batches: {batched[0].name} has {rows} rows, "
                f"which {self.parts} does not divide; {shown or 'nothing'} would"
            )
        of.update(dict.fromkeys(graph.inputs, ONCE))
        of.update(dict.fromkeys(self.own.states if self.own else (), OWN))
        of.update({value: MicroRows(0) for value in batched if value.type.shape[0] == rows})

    def _node(self, node: Node, original: Node) -> None:
        of = self.forms.of
        used = [of[value] for value in node.uses]
        if any(isinstance(form, MicroRows) for form in used):
            results = self._with_rows(node, original)
        elif self._is_inside(original) and any(map(self._is_own, node.uses)):
            results = self._with_own(node)
        else:
            results = self._without_rows(node, used)
        of.update(zip(node.results, results, strict=True))

    def _is_inside(self, node: Node) -> bool:
        """Whether a node is of the forward or backward pass, where micro batches may have statistics of their own."""
        return self.own is not None and node in self.own.inside

    def _is_own(self, value: Value) -> bool:
        return self.own is not None and (self.forms.of[value] == OWN or value in self.own.values)

    def _with_own(self, node: Node) -> Sequence[Form]:
        """Of a node without rows that reads what is each micro batch's own: so is what it makes."""
        assert self.own is not None
        if node.regions:
            raise self._refusal(node, "holds computations of its own, which are not done for each micro batch yet")
        wants = []
        for value in node.operands:
            if self.forms.of[value] == ONCE:
                wants.append(None)
            elif value in self.from_data and not self._is_own(value):
                self._whole(value)
                wants.append(None)
            else:
                self._take_own(value, node)
                wants.append(OWN)
        attrs = self.own.attributes(node, self.forms.of)
        self.forms.cuts[node] = Cut(tuple(wants), (OWN,) * len(node.results), attrs, node.result_types)
        return [OWN] * len(node.results)

    def _take_own(self, value: Value, node: Node) -> None:
        """Let each micro batch have its own of a value."""
        assert self.own is not None
        if self.forms.of[value] == MicroPartial("prod"):
            raise self._refusal(node, f"needs {value.name}, a product over the whole batch")
        self.own.add(value, self.forms.of, node)

    def _whole(self, value: Value) -> None:
        """Make a value that follows from data alone before the first micro batch."""
        self.forms.whole.add(value)
        self.forms.of[value] = ONCE

    def _refusal(self, node: Node, why: object) -> GraphError:
        return GraphError(f"{self.graph.name!r} cannot be cut into {self.parts} micro batches: {describe(node)} {why}")

    def _without_rows(self, node: Node, used: Sequence[Form]) -> Sequence[Form]:
        """Of a node that has no rows of micro batches: once, late, or one more step for each term."""
        if all(form == ONCE for form in used):
            return [ONCE] * len(node.results)
        terms = [form for form in used if isinstance(form, MicroPartial)]
        if not terms or LATE in used or OWN in used or not self._pays(node, used):
            return [LATE] * len(node.results)
        wants = tuple(form if isinstance(form, MicroPartial) else None for form in used)
        self.forms.cuts[node] = Cut(wants, (terms[0],), node.attrs, node.result_types)
        return [terms[0]]

    def _pays(self, node: Node, used: Sequence[Form]) -> bool:
        """Whether a linear operator on terms runs for each micro batch: if then less has to be added up than otherwise,
        or if it costs nothing and terms of other uses may join."""
        terms = tuple(i for i, form in enumerate(used) if isinstance(form, MicroPartial))
        sets = node.op.linear_in(len(node.operands))
        if node.regions or len(node.results) != 1 or terms not in sets or not node.op.has_rule:
            return False
        if {used[i] for i in terms} != {MicroPartial("sum")}:
            return False
        alone = all(len(self.graph.users[node.operands[i]]) == 1 for i in terms)
        before, after = sum(node.operands[i].type.nbytes for i in terms), node.results[0].type.nbytes
        return alone and (after < before or bool(node.op.view) and after == before)

    def _with_rows(self, node: Node, original: Node) -> Sequence[Form]:
        """Of a node with rows of micro batches: it runs for each, or if it follows from data alone once for all."""
        try:
            self._whole_operands(node, original)
            cut = self._barrier(node) if is_barrier(node) else self._cut(node, original)
        except MicroRefusal as why:
            if not all(value in self.from_data for value in node.results) or not node.results:
                raise self._refusal(node, why) from None
            self.forms.whole.update(node.uses)
            return [ONCE] * len(node.results)
        self.forms.cuts[node] = cut
        return cut.results

    def _whole_operands(self, node: Node, original: Node) -> None:
        """What the node needs besides rows must be there before the first micro batch, or be each one's own."""
        for value in node.uses:
            form = self.forms.of[value]
            if form != LATE and not isinstance(form, MicroPartial) or self._is_own(value):
                continue
            inside, data = self._is_inside(original), value in self.from_data
            if data and not (inside and self.own is not None and self.own.takes_data(original, value)):
                self._whole(value)
            elif inside:
                self._take_own(value, node)
            else:
                raise MicroRefusal(
                    f"needs {value.name}, which is known only after the last micro batch: it is computed from the "
                    f"whole batch (as the statistics of a batch normalization are); {_OTHERWISE}"
                )

    def _barrier(self, node: Node) -> Cut:
        """Of a barrier of one value, which passes on what it gets."""
        (value,) = node.operands
        form = self.forms.of[value]
        assert isinstance(form, MicroRows)
        of = value.type.with_shape(local(value.type.shape, form, self.parts))
        return Cut((form,), (form,), node.attrs, (of,))

    def _cut(self, node: Node, original: Node) -> Cut:
        if node.regions or not node.op.has_rule:
            raise MicroRefusal("holds computations of its own, which are not cut into micro batches yet")
        given = [self.forms.of[value] for value in node.operands]
        factor, inner = self._rows(node, given)
        if node.op in COMPOSITES and self._is_inside(original):
            found = cut_statistics(node, factor, inner, self.parts)
        elif node.op in COMPOSITES:
            raise MicroRefusal(f"needs all rows of the batch at once; {_OTHERWISE}")
        else:
            found = cut_by(node, factor, inner, self.mesh, self.makers)
        operands = list(found.operands)
        for i, (value, form, wanted) in enumerate(zip(node.operands, given, found.operands, strict=True)):
            if isinstance(form, MicroRows) and form != wanted:
                raise MicroRefusal(f"takes the rows of the batch of {value.name} in another order")
            if self._is_own(value):
                operands[i] = OWN if wanted is None else self._rows_of_own(value, wanted)
        return replace(found, operands=tuple(operands))

    def _rows_of_own(self, value: Value, part: Form) -> MicroRows:
        """The same part, if what is each micro batch's own is spread over its rows: only they are made then."""
        node = self.makers.get(value)
        if node is None or not isinstance(part, MicroRows):
            raise MicroRefusal(f"takes rows of {value.name}, of which each micro batch has its own")
        cut = cut_at(node, node.results.index(value), part, self.mesh, self.makers)
        for operand, wanted in zip(node.operands, cut.operands, strict=True):
            if wanted is not None and self._is_own(operand):
                self._rows_of_own(operand, wanted)
        return part

    def _rows(self, node: Node, given: Sequence[Form]) -> tuple[int, int]:
        """The factor that has the rows of the batch, and how many of its elements belong to a row."""
        rule = node.rule
        found = set()
        for value, form, dims in zip(node.operands, given, rule.operands, strict=True):
            if isinstance(form, MicroRows):
                one = factor_of(rule, dims, form, self.parts)
                if one is None:
                    raise MicroRefusal(f"takes apart or joins the rows of the batch of {value.name}")
                found.add(one)
        if len(found) > 1:
            raise MicroRefusal("sets rows of the batch against each other")
        return found.pop()
