"""Plans that people write by hand, made for any graph that has what they split. Annotations do not bind them.

| name | data axis | tensor or expert axis |
|---|---|---|
| data_parallel | batch; everything else repeated, gradients all-reduced | |
| zero1 | and optimizer states in parts | (Rajbhandari et al. 2020, "ZeRO", section 5) |
| zero2 | and gradients in parts | |
| zero3 | and parameters in parts, gathered for each pass where they are used, and let go behind (FSDP) | |
| zero3_keep | the same, gathered once and kept for the backward pass (FSDP without resharding after forward) | |
| megatron | batch | columns, then rows of weights; vocabulary (Shoeybi et al. 2019, section 3) |
| megatron_sp | batch | the same; between, the sequence, gathered for each pass (Korthikanti et al. 2022, section 4) |
| megatron_sp_keep | batch | the same, gathered once and kept for the backward pass |
| fsdp_tp | as zero3 | as megatron_sp |
| hsdp | as zero3 over one axis, repeated over another that splits the batch, too | |
| expert_parallel | batch | batch; experts, tokens exchanged all-to-all (Lepikhin et al. 2020, "GShard") |
| zero1_ep | as zero1 | as expert_parallel (Rajbhandari et al. 2022, "DeepSpeed-MoE", section 5) |
| fsdp_ep | as zero3 | as expert_parallel |
| context_parallel | batch | the sequence; attention takes all keys, in turn (Liu et al. 2023, "Ring Attention") |
| context_parallel_keep | batch | the same, all keys kept for the backward pass |
| ulysses | batch | the sequence; attention by heads, all-to-alls around it (Jacobs et al. 2023, "DeepSpeed Ulysses") |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from autoshard.core.strategy import Strategy, project, replicated_strategy
from autoshard.ir.fusion import fused
from autoshard.ir.graph import DATA, PARAMETER, Graph, Node, Value
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import size_of
from autoshard.plan.plan import Plan
from autoshard.search.named import sequences
from autoshard.search.named.completion import Completion, forms_of, split, without
from autoshard.search.named.pairs import COLUMNS, ROWS, Pairs, whole_heads
from autoshard.search.named.recipe import Axes, Recipe
from autoshard.search.named.streams import Streams
from autoshard.search.named.structure import Structure, WeightUse
from autoshard.search.problem import CARRIED, Problem
from autoshard.transform.recompute import regather, regather_values
from autoshard.transform.sums import summed_first
from autoshard.util.errors import PlanError

PART_OF_STEP = "part_of_step"
"""The option that says that what is planned is a stage of a training step, which may update nothing itself."""
REDUCED_ONCE = "reduced_once"
"""The option of a problem that stands for one of several micro batches of a stage: gradients are added up before a
reduction, and each pass is a program of its own, which lets go of what it has gathered."""


def named_plan(problem: Problem, recipe: Recipe, axes: Mapping[str, str] | None = None) -> Plan:
    """The plan of a recipe.

    Args:
        axes: which mesh axis is for "data", "shard", "tensor", "expert", "context"; by default by names, then by order.

    Raises:
        PlanError: the graph has nothing that the recipe splits, or the mesh no axis for it.
    """
    maker = _Maker(problem, recipe, Axes.of(recipe, problem.mesh, axes))
    maker.check_experts()
    # In loops all is gathered for each turn anyway.
    keeps = problem.options.get(REDUCED_ONCE) or problem.inside
    graph = problem.graph if keeps else maker.gathered_again()
    if graph is not problem.graph:
        if (how := problem.hardware.device.fusion) != "none":
            graph, _ = fused(graph, how)
        maker = _Maker(replace(problem, graph=graph), recipe, maker.axes)
    return maker.plan()


class _Maker:
    def __init__(self, problem: Problem, recipe: Recipe, axes: Axes) -> None:
        self.problem, self.recipe, self.axes = problem, recipe, axes
        self.graph, self.mesh = problem.graph, problem.mesh
        self.structure = Structure(problem.graph)
        self.parameters: dict[Value, Layout] = {}
        self.weights: dict[Value, Layout] = {}
        self.left: dict[Value, Layout] = {}
        self.summands: dict[Value, Layout] = {}
        self.rows = 0

    def plan(self) -> Plan:
        self._check()
        if self.second:
            self._split_weights()
        self.left = self._pinned()
        words = f"{self.recipe.words}; {self.axes.shown(self.mesh, self.recipe.hybrid)}"
        return self._completion(self._inputs(), self._adjust, self.left).plan(self.recipe.name, words)

    @property
    def second(self) -> Refs:
        return self.axes.tensor + self.axes.expert

    def gathered_again(self) -> Graph:
        """The graph in which what is gathered for the forward pass is let go, and gathered again for the backward
        one: parameters, tokens that products by columns take."""
        graph = self.graph
        if self.recipe.sequence and self.axes.tensor:
            columns = [use for use in self.structure.weight_uses if self._pairs.kinds.get(use.node) == COLUMNS]
            taken = [use.node.operands[use.data] for use in columns]
            taken = [value for value in taken if value not in self._pairs.latents]
            weights = {self.structure.parameter_of(use.node.operands[use.weight]) for use in columns}
            graph = summed_first(graph, dict(self.structure.terms_from(weights)))
            graph = regather_values(graph, taken) if self.recipe.tokens_again else graph
        if self.recipe.keys_again and self.axes.context:
            attentions = (node for node in self.structure.forward if node.op.name == "Attention")
            graph = regather_values(graph, [value for node in attentions for value in sequences.keys_of(node)])
        return regather(graph) if self.recipe.again else graph

    def _refuse(self, why: str) -> PlanError:
        return PlanError(f"the named plan {self.recipe.name!r} does not fit {self.graph.name!r}: {why}")

    def _check(self) -> None:
        if self.recipe.zero in (1, 2) and not self.structure.updates and not self.problem.options.get(PART_OF_STEP):
            raise self._refuse(
                "it is no training step: no operator updates a parameter from a gradient, and optimizer states and "
                "gradients are all that it splits besides the batch; without them it is 'data_parallel', and 'zero3' "
                "splits the parameters"
            )
        if self.axes.data and not any(self._batch(value) for value in self.graph.inputs):
            data = (one for one in self.graph.inputs if self.graph.role_of[one] == DATA)
            shown = ", ".join(f"{one.name} {one.type}" for one in data)
            parts = size_of(self.axes.data)
            raise self._refuse(f"no data input has a first dim that {parts} parts divide; they are {shown or 'none'}")
        parts = size_of(self.axes.context)
        if self.recipe.context and (why := sequences.misfit(self.structure, self._sequences, parts)):
            raise self._refuse(why)

    def check_experts(self) -> None:
        """Raises PlanError if there are no experts where they are what is split."""
        if self.recipe.experts and not any(use.batch for use in self.structure.weight_uses):
            raise self._refuse(
                "no product multiplies tokens by weights of several experts, one beside the other; of sorted tokens "
                "there is one if the model is imported with capacity_factor=inf"
            )

    @cached_property
    def _sequences(self) -> dict[Value, int]:
        return sequences.sequence_dims(self.graph, self.structure)

    @cached_property
    def _looked_up(self) -> dict[Node, int]:
        return sequences.words_looked_up(self.graph, self.structure) if self.axes.context else {}

    def _sequence(self, value: Value) -> int | None:
        """The dim of a data input that the context axes split, if there is one."""
        dim = self._sequences.get(value) if self.axes.context else None
        return dim if dim is not None and value.type.shape[dim] % size_of(self.axes.context) == 0 else None

    def _completion(
        self,
        inputs: Mapping[Value, Layout],
        adjust: Callable[[Node, Strategy], Strategy | None],
        pinned: Mapping[Value, Layout] | None = None,
    ) -> Completion:
        gathered = self.axes.shard if self.recipe.zero == 3 else ()
        parts = self._parts if pinned is not None else lambda value: 1  # known behind the first
        return Completion(
            self.problem, self.structure, inputs, adjust, pinned,
            settle=self._settle, gathered=gathered, parts=parts, ends=self._goes_to_experts,
        )  # fmt: skip

    # -- layouts of inputs

    def _batch(self, value: Value) -> bool:
        """Whether a data input can be split along its first dim."""
        shape = value.type.shape
        is_data = self.graph.role_of[value] == DATA
        return is_data and bool(shape) and shape[0] % size_of(self.axes.data) == 0

    def _inputs(self) -> dict[Value, Layout]:
        found = {}
        for value, role in zip(self.graph.inputs, self.graph.roles, strict=True):
            if role == DATA:
                found[value] = self._fed(value)
            elif role == PARAMETER:
                is_weight = value.type.dtype.is_float  # and no mask that a model keeps
                found[value] = self._sharded(value) if self.recipe.zero == 3 and is_weight else self._base(value)
        for update in self.structure.updates:
            for state in update.states:
                found[state] = self._stored(state, update.owner)
        return found

    def _fed(self, value: Value) -> Layout:
        """A data input with its batch and its sequence in parts, as far as they divide."""
        dims: list[Refs] = [()] * value.type.rank
        if self.axes.data and self._batch(value):
            dims[0] = self.axes.data
        sequence = self._sequence(value)
        if sequence is not None:
            dims[sequence] = self.axes.context
        made = Layout(self.mesh, dims)
        begins = self.recipe.sequence and value in self._pairs.streams
        return self._streams.spread(value, made, self.axes.tensor) if begins else made

    def _base(self, value: Value) -> Layout:
        """A parameter as the tensor or expert axis splits it."""
        return self.parameters.get(value) or Layout.replicated(self.mesh, value.type.rank)

    def _sharded(self, value: Value) -> Layout:
        """The base split further over ZeRO's axes, along the first dim that it divides, of layers that turns of a loop
        take last; else as it is."""
        base = self._base(value)
        over = without(self.axes.shard, base.used)
        turns = self.structure.dims_of_turns(value)
        for dim in sorted(range(base.rank), key=lambda dim: dim in turns):
            if over and value.type.shape[dim] % (base.parts[dim] * size_of(over)) == 0:
                return base.with_dim(dim, (*base.dims[dim], *over))
        return base

    def _stored(self, state: Value, parameter: Value | None) -> Layout:
        if parameter is None or parameter.type.shape != state.type.shape:
            return Layout.replicated(self.mesh, state.type.rank)
        return self._sharded(parameter) if self.recipe.zero else self._base(parameter)

    def _pinned(self) -> dict[Value, Layout]:
        """Gradients that are not left as terms of a sum until the update: whole in stage 1, but for those that a loop
        collects, later in parts, already where they are the gradient of another form of the parameter
        (cast, turned). What several uses of a parameter add to its gradient is left as it comes, to be
        completed once, where they are one. None where micro batches add terms up that are reduced once:
        what parameters gathered for all of them, and ZeRO-1, stand for."""
        found: dict[Value, Layout] = {}
        once = self.recipe.zero == 1 or self.recipe.zero == 3 and not self.recipe.again
        if once and self.problem.options.get(REDUCED_ONCE):
            return found
        for update in self.structure.updates:
            if self.recipe.zero and update.gradient is not None and update.owner is not None:
                if self.recipe.zero == 1 and self.structure.is_made_of_states(update):
                    continue  # it lies as the states do, not as the gradient
                whole = self.recipe.zero == 1 and not self.structure.dims_of_turns(update.owner)
                layout = self._base(update.owner) if whole else self._sharded(update.owner)
                same, summands = forms_of(self.graph, update.gradient, layout, self._made_backward)
                found.update((value, layout) for value, layout in same.items() if not self.structure.is_spread(value))
                self.summands.update(summands)
        return found

    @cached_property
    def _made_backward(self) -> frozenset[Value]:
        """Values of the backward pass that come from data: gradients, and what these are forms of."""
        forward = self.structure.forward_nodes
        made = [value for node in self.graph.nodes if node not in forward for value in node.results]
        made += [self.structure.keepers[value] for value in made if value in self.structure.keepers]
        return frozenset(value for value in made if value in self.structure.fed)

    # -- strategies of nodes

    @cached_property
    def _updates(self) -> dict[Node, Value]:
        return {one.node: one.owner for one in self.structure.updates if one.owner is not None}

    def _adjust(self, node: Node, strategy: Strategy) -> Strategy | None:
        """A node's own strategy; with split sequences a stream that begins whole is left in parts."""
        made = self._own(node, strategy)
        if self.recipe.sequence:
            for value, layout in zip(node.results, (made or strategy).result_layouts, strict=True):
                if value in self._pairs.streams:
                    whole = layout.final()
                    self.left.setdefault(
                        value, self._streams.spread(value, whole, without(self.axes.tensor, whole.used))
                    )
        return made

    def _own(self, node: Node, strategy: Strategy) -> Strategy | None:
        """Updates run as the states lie; products and gradients of weights keep these as they are split."""
        if node in self._updates:
            return self._updating(node, self._updates[node])
        if node in self._gathered_forms:
            return replace(strategy, axes=tuple(without(refs, self.axes.shard) for refs in strategy.axes))
        if self.axes.context and sequences.is_attention(node):
            return self._heads(node, strategy) if self.recipe.heads else self._terms_of_keys(node, strategy)
        wanted = dict(self._wanted(node)) if self.parameters else {}
        if self.recipe.sequence and not wanted:  # no part of the table is here alone
            rows = self._streams.gathered_rows(node, strategy, self.axes.tensor)
            if rows is not None:
                return rows
        factor = self._looked_up.get(node)
        if factor is not None and not any(ref in refs for refs in strategy.axes for ref in self.axes.context):
            wanted[factor] = self.axes.context
        return split(node, wanted, strategy, keep_rest=bool(self.axes.expert)) if wanted else None

    def _heads(self, node: Node, strategy: Strategy) -> Strategy:
        """Attention split by heads, whose results are left split by sequences."""
        made = sequences.by_heads(node, strategy, self.axes.context)
        if made is None:
            raise self._refuse(
                f"{size_of(self.axes.context)} parts do not divide the heads of {node.label}, queries "
                f"{node.operands[0].type}; 'context_parallel' needs none"
            )
        for value, layout in zip(node.results, made.result_layouts, strict=True):
            has_sequence = node.op.name not in sequences.WITHOUT_SEQUENCE
            # Not the sums of exponentials, which only it needs.
            if has_sequence and value.type.rank == node.operands[0].type.rank:
                self.left[value] = sequences.by_sequence(layout.final(), self.axes.context)
        return made

    def _terms_of_keys(self, node: Node, strategy: Strategy) -> Strategy | None:
        """The gradient of keys and values as terms, which are summed into parts of the sequence, if that is less."""
        of_keys = node.op.name == "AttentionKeyGrad"
        made = sequences.by_queries(node, strategy, self.axes.context) if of_keys else None
        if made is None:
            return None
        for value, layout in zip(node.results, made.result_layouts, strict=True):
            self.left[value] = sequences.by_sequence(layout.final(), self.axes.context)
        return made

    def _updating(self, node: Node, parameter: Value) -> Strategy:
        layout = self._sharded(parameter) if self.recipe.zero else self._base(parameter)
        place = next((i for i, one in enumerate(node.results) if one.type.shape == parameter.type.shape), None)
        if place is None or node.results[place] not in self.structure.replacing:
            return replicated_strategy(node.rule, self.mesh)
        return Strategy(node.rule, self.mesh, project(node.rule, node.rule.results[place], layout))

    def _wanted(self, node: Node) -> Sequence[tuple[int, Refs]]:
        """Factors of a product or look-up with a weight, or of what makes its gradient, as the weight is split."""
        sides = [(dims, self._weight(value)) for dims, value in zip(node.rule.operands, node.operands, strict=True)]
        if not node.rule.contracted and not any(node is one for one, _ in self.structure.lookups):
            sides = []
        made = zip(node.rule.results, node.results, strict=True)
        sides += [(dims, self._differentiated(value)) for dims, value in made]
        for dims, layout in sides:
            if layout is not None and any(layout.dims) and layout.rank == len(dims):
                axes = project(node.rule, dims, layout)
                return [(i, refs) for i, refs in enumerate(axes) if refs]
        return []

    def _goes_to_experts(self, value: Value) -> bool:
        """Whether, with split sequences, a value is combined with tokens by a product: rows of experts, of which each
        rank has its part to keep."""
        users = [user for user, _ in self.graph.users[value]] if self.recipe.sequence else []
        products = [user for user in users if user.is_product]
        return any(one in self.structure.fed for user in products for one in user.operands if one is not value)

    def _parts(self, value: Value) -> int:
        """In how many parts a gradient lies over the second axis."""
        layout = self._differentiated(value)
        return math.prod(layout.parts) if layout is not None and layout.rank == value.type.rank else 1

    def _differentiated(self, value: Value) -> Layout | None:
        """How the parameter, or the other form of one, that a value is the gradient of is split."""
        of = self.graph.cotangents.get(value)
        if of is None or (found := self.parameters.get(of) or self._weight(of)) is None:
            return self._terms.get(value)
        return found

    @cached_property
    def _terms(self) -> dict[Value, Layout]:
        """What several uses of one parameter add to its gradient, as the second axis splits the parameter."""
        found: dict[Value, Layout] = {}
        for update in self.structure.updates:
            base = self.parameters.get(update.parameter) if update.parameter is not None else None
            if base is not None and update.gradient is not None:
                found |= forms_of(self.graph, update.gradient, base, self._made_backward)[1]
        return found

    def _weight(self, value: Value) -> Layout | None:
        """How a parameter, or another form of one (cast, turned, made again), is split by the second axis."""
        source = None if value in self.weights else self.structure.form_of(value)
        layout = None if source is None else self._weight(source)
        if source is not None and layout is not None and value not in self.graph.role_of:
            node, i = self.graph.producers[value]
            axes = project(node.rule, node.rule.operands[node.operands.index(source)], layout)
            layout = Strategy(node.rule, self.mesh, axes).result_layouts[i]
        if layout is not None:
            self.weights[value] = layout
        return self.weights.get(value)

    def _settle(self, value: Value, layout: Layout) -> Layout:
        """How a sum ends: one that makes up a gradient as the gradient lies; one over the tensor axis on all ranks, or,
        with split sequences, in parts along the sequence, but for numbers that columns in parts are scaled by."""
        if value in self.summands:
            return self.summands[value]
        names = {ref.name for ref in self.axes.tensor}
        over = tuple(ref for ref in layout.partial if ref.name in names)
        is_stream = self.recipe.sequence and self._streams.is_stream(value)
        return self._streams.spread(value, layout, over) if is_stream else layout.final()

    @cached_property
    def _gathered_forms(self) -> frozenset[Node]:
        """What makes other forms of parameters from what ZeRO-3 gathers of these for other nodes; and, where it gathers
        once a step, what takes them into loops."""
        if self.recipe.zero != 3:
            return frozenset()
        once = () if self.recipe.again else self.structure.into_loops()
        return self.structure.forms_beside(in_forward=self.recipe.again).union(once)

    @cached_property
    def _streams(self) -> Streams:
        return Streams(self.graph, self.structure, self._pairs)

    # -- which weights are split, and how

    def _split_weights(self) -> None:
        """Go through the forward pass once with whole weights, to see which products come in pairs."""
        if self.axes.tensor and (misfit := self._pairs.misfit) is not None:
            raise self._refuse(misfit)
        uses = {use.node: use for use in self.structure.weight_uses}
        lookups = dict(self.structure.lookups) if self.axes.tensor else {}

        def adjust(node: Node, strategy: Strategy) -> Strategy | None:
            if node in uses:
                made = self._experts(uses[node], strategy) if self.axes.expert else None
                made = (self._tensor(uses[node], made or strategy) if self.axes.tensor else None) or made
            elif node in lookups:
                made = split(node, {lookups[node]: self.axes.tensor}, strategy)
            else:
                return None
            found = made or strategy
            place = uses[node].weight if node in uses else 0
            self._note(node.operands[place], found.operand_layouts[place])
            return made

        inputs = {value: layout for value, layout in self._inputs().items() if self.graph.role_of[value] == DATA}
        first = self._completion(inputs, adjust)
        first.decide(self.recipe.name, self.structure.forward)
        for node in self.structure.forward:
            for value, layout in zip(node.operands, first.decisions[node].strategy.operand_layouts, strict=True):
                of = self.structure.parameter_of(value) if any(layout.dims) else None
                if of is not None and of not in self.parameters:
                    self._note(value, layout)
        if self.axes.tensor and not self.rows:
            raise self._refuse(
                f"no product takes its rows over {self._shown()} from one that left its columns so; it needs two "
                "products of data by weights, one behind the other, whose shared size (or number of heads) "
                f"{size_of(self.axes.tensor)} parts divide; {self._pairs.described}"
            )

    def _shown(self) -> str:
        return ".".join(map(self.mesh.show_ref, self.second))

    @cached_property
    def _pairs(self) -> Pairs:
        return Pairs(self.structure, lambda use: self._dividing(use.node, use.kept) is not None)

    def _dividing(self, node: Node, factors: Sequence[int]) -> int | None:
        """The first of a node's factors that the tensor axis divides."""
        parts = size_of(self.axes.tensor)
        return next((i for i in factors if parts > 1 and node.rule.factors[i].even % parts == 0), None)

    def _tensor(self, use: WeightUse, strategy: Strategy) -> Strategy | None:
        """Columns or rows, as the product stands in its pair; data that lies whole is cut for rows."""
        kind = self._pairs.kinds.get(use.node)
        if kind == COLUMNS:
            factor = self._dividing(use.node, use.kept)
            assert factor is not None, "pairs begin with what the axis divides"
            over = whole_heads(self.structure, use.node, factor, self.axes.tensor)
            return split(use.node, {factor: over}, strategy) if over else None
        if kind != ROWS:
            return None
        self.rows += 1
        names = {ref.name for ref in self.axes.tensor}
        if any(ref.name in names for i in use.contracted for ref in strategy.axes[i]):
            return None
        factor = self._dividing(use.node, use.contracted)
        return None if factor is None else split(use.node, {factor: self.axes.tensor}, strategy)

    def _experts(self, use: WeightUse, strategy: Strategy) -> Strategy | None:
        for i in use.batch:
            over = self._dividing_axes(use.node.rule.factors[i].size)
            return split(use.node, {i: over}, strategy, keep_rest=True)
        return None

    def _dividing_axes(self, experts: int) -> Refs:
        """The minor part of the expert axes, of the nearest devices, into whose parts experts divide."""
        over: Refs = ()
        for ref in reversed(self.axes.expert):
            common = math.gcd(experts // size_of(over), ref.size)
            over = (ref, *over) if common == ref.size else (*ref.split(ref.size // common)[1:], *over)
            if common < ref.size:
                break
        if not over:
            raise self._refuse(
                f"{experts} experts do not divide over {self._shown()} ({size_of(self.axes.expert)} ranks), and share "
                "no divisor with them"
            )
        return over

    def _note(self, value: Value, layout: Layout) -> None:
        """Remember how a weight is split by the second axis, and each other form of it up to the parameter."""
        names = {ref.name for ref in self.second}
        own = layout.final().with_dims([ref for ref in refs if ref.name in names] for refs in layout.dims)
        if not any(own.dims):
            return
        self.weights.setdefault(value, own)
        while self.graph.role_of.get(value, CARRIED) == CARRIED:
            source = self.structure.form_of(value)
            if source is None:
                return
            if value not in self.graph.role_of:
                node, i = self.graph.producers[value]
                axes = project(node.rule, node.rule.results[i], own)
                own = Strategy(node.rule, self.mesh, axes).operand_layouts[node.operands.index(source)]
            value = source
            self.weights.setdefault(value, own)
        if self.graph.role_of[value] == PARAMETER:
            self.parameters.setdefault(value, own)
