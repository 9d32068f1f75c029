"""The stage of each operator of one micro batch: given by name, or by what it reads.

Values of the forward pass go to stages with higher numbers only, gradients to lower ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.ir.graph import PARAMETER, Graph, Node, Value, walk
from autoshard.ir.verify import describe
from autoshard.pipeline.stages.patterns import stages_by_name
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.recompute import backward_begins
from autoshard.util.errors import StageError, at

_GRADIENT = "grad."


@dataclass(frozen=True)
class Assigned:
    """Stages of the nodes of a micro batch and of parameters; which nodes belong to the forward pass.

    `free` nodes read neither parameters nor what others make: each stage that needs what they make runs them itself.
    """

    count: int
    of: Mapping[Node, int]
    parameters: Mapping[Value, int]
    forward: frozenset[Node]
    free: frozenset[Node]


def assign(step: StepParts, given: Mapping[str, int]) -> Assigned:
    """The stages of all nodes of a micro batch.

    An operator of the forward pass that no pattern names belongs to the last stage that it reads something of, value or
    parameter. Gradients belong to the stage of the operator that they are of, their sums to the first stage that these
    come from.

    Raises:
        StageError: more stages than there are operators in, or an operator of a stage reads what a later one makes.
        UnknownNameError: a pattern that matches nothing.
    """
    _check_gradients(step)
    graph, forward = step.graph, forward_nodes(step.graph)
    parameters = [value for value in graph.inputs if graph.role_of[value] == PARAMETER]
    operators = [node.name for node in graph.nodes if node in forward and node.name]
    found = stages_by_name(given, (*(value.name for value in parameters), *operators))
    named = {node: found[node.name] for node in forward if node.name in found}
    owners = {value: found[value.name] for value in parameters if value.name in found}
    return _Assigner(step, max(given.values()) + 1, named, owners).run()


def assign_nodes(
    step: StepParts, stages: Mapping[Node, int], count: int, parameters: Mapping[Value, int] | None = None
) -> Assigned:
    """The same where operators of the forward pass (nodes of `step.graph`) are given to stages one by one.

    Args:
        parameters: the stages of some; others are of the first stage that reads them.

    Raises:
        StageError: as `assign`.
    """
    _check_gradients(step)
    return _Assigner(step, count, stages, parameters or {}).run()


def by_name(node: Node, known: Mapping[str, int]) -> int | None:
    """What is known, by its name, of the operator whose gradient a node is a part of: gradients bear it."""
    words = node.name.removeprefix(_GRADIENT).split(".")
    names = (".".join(words[:count]) for count in range(len(words), 0, -1))
    return next((known[name] for name in names if name in known), None)


def forward_nodes(graph: Graph) -> set[Node]:
    """The nodes of the forward pass."""
    return set(graph.nodes[: backward_begins(graph)])


def check_no_own_loops(graph: Graph) -> None:
    """That a step does not come in micro batches, or with its loss in pieces, already: stages have loops of their own.

    Raises:
        StageError: it does.
    """
    loops = {node.name for node in graph.nodes if node.op.name == "While"}
    if own := [name for name in ("micro_batches", "loss_pieces") if name in loops]:
        raise StageError(
            f"{graph.name!r} cannot be cut into stages: it has a loop over {' and over '.join(own)} already; give "
            f"{' and '.join(own)} where stages are planned, not where the step is made"
        )


def _check_gradients(step: StepParts) -> None:
    if not step.graph.updates or step.graph.cotangents:
        return
    looped = next((node for node in walk(step.graph.nodes) if f".{_GRADIENT}" in f".{node.name}"), None)
    if looped is not None:
        raise StageError(
            f"{step.graph.name!r} cannot be cut into stages: it takes gradients in a loop of its own, of a part of the "
            f"batch each time ({looped.label}{at(looped.source)}); take them of the whole batch at once and give "
            "micro_batches, which adds up those of parts as well"
        )
    raise StageError(
        f"{step.graph.name!r} cannot be cut into stages: it came with its gradients, and does not say which "
        "operators make them; let autoshard differentiate it"
    )


class _Assigner:
    def __init__(self, step: StepParts, count: int, named: Mapping[Node, int], parameters: Mapping[Value, int]) -> None:
        self.step, self.count, self.named, self.parameters = step, count, named, dict(parameters)
        self.forward_nodes = forward_nodes(step.graph)
        self.once = _once(step, self.parameters)
        self.weights = made_of_parameters(step)
        self.made: dict[Value, tuple[int, bool]] = {}
        self.stage_named: dict[str, int] = {}
        self.from_states = set(step.body.carried)

    def run(self) -> Assigned:
        of: dict[Node, int] = {}
        forward, free = set(), set()
        of_states: list[Node] = []
        for node in self.step.body.nodes:
            if self._is_free(node):
                free.add(node)
                continue
            if self._reads_states_alone(node):
                of_states.append(node)
                self.from_states.update(node.results)
                continue
            stage, is_forward = self._stage(node)
            of[node] = stage
            if is_forward:
                forward.add(node)
                self.stage_named[node.name] = stage
            self.made.update(dict.fromkeys(node.results, (stage, is_forward)))
        forward.update(of_states)
        of = self._with_states(of, of_states)
        for stage in range(self.count):
            if all(of[node] != stage for node in forward):
                raise StageError(
                    f"{self.step.graph.name!r} cannot be cut into {self.count} stages: no operator of the forward pass "
                    f"is in stage {stage}"
                )
        return Assigned(self.count, of, self._owners(of), frozenset(forward), frozenset(free))

    def _is_free(self, node: Node) -> bool:
        """Whether it computes with data and constants alone, and no pattern names it."""
        original = self.step.body.of.get(node)
        named = original is not None and original in self.named
        reads = any(value in self.made or value in self.weights or value in self.from_states for value in node.uses)
        result = any(one in node.results for one, _ in self.step.body.outputs.values())
        return not (named or reads or result or node.op.has_effects(node.attrs))

    def _reads_states_alone(self, node: Node) -> bool:
        """Whether it computes with states that micro batches hand on and with what is free, and no pattern names it."""
        known = (self.made, self.weights, self.once, self.step.body.slices)
        others = any(value in some for value in node.uses for some in known)
        named = self.step.body.of.get(node) in self.named
        return not others and not named and any(value in self.from_states for value in node.uses)

    def _with_states(self, of: Mapping[Node, int], of_states: Sequence[Node]) -> dict[Node, int]:
        """All nodes in order, those that compute with states where what they make is read.

        Raises:
            StageError: a state is read in another stage than it is written in.
        """
        found = dict(of)
        readers: dict[Value, list[int]] = {}
        for node, stage in of.items():
            for value in node.uses:
                readers.setdefault(value, []).append(stage)
        for node in reversed(of_states):
            found[node] = min((stage for value in node.results for stage in readers.get(value, ())), default=0)
            for value in node.uses:
                readers.setdefault(value, []).append(found[node])
        makers = {value: stage for node, stage in found.items() for value in node.results}
        for state, whole in self.step.body.carried.items():
            stage = makers[self.step.body.outputs[whole][0]]
            if other := set(readers.get(state, ())) - {stage}:
                raise StageError(
                    f"{self.step.graph.name!r} cannot be cut into stages: state {state.name} is read in stage "
                    f"{other.pop()}, but written in stage {stage}; give both to one stage"
                )
        return {node: found[node] for node in self.step.body.nodes if node in found}

    def _stage(self, node: Node) -> tuple[int, bool]:
        original = self.step.body.of.get(node)
        is_forward = (
            original in self.forward_nodes
            if original
            else not any(not self.made[value][1] for value in node.uses if value in self.made)
        )
        read = [self.made[value] for value in node.uses if value in self.made]
        ahead = [stage for stage, is_forward in read if is_forward]
        ahead += [self.once[value] for value in node.uses if value in self.once]
        back = [stage for stage, is_forward in read if not is_forward]
        if is_forward:
            stage = self.named.get(original, max(ahead, default=0)) if original else max(ahead, default=0)
            self._check(node, stage, max(ahead, default=0))
            return stage, True
        last = self.count - 1
        is_sum = not ahead and len(back) > 1 and self.weights.keys().isdisjoint(node.uses)
        own = None if is_sum else by_name(node, self.stage_named)
        stage = own if own is not None else last if is_sum else max(ahead, default=last)
        return min([stage, *back]), False

    def _check(self, node: Node, stage: int, needed: int) -> None:
        if needed > stage:
            reads = next(
                value.name for value in node.uses if self.made.get(value, (self.once.get(value, -1), True))[0] == needed
            )
            raise StageError(
                f"{self.step.graph.name!r} cannot be cut into stages that wait for each other: {describe(node)} is in "
                f"stage {stage}, but reads {reads.removesuffix('.micro')} of stage {needed}"
            )

    def _owners(self, of: Mapping[Node, int]) -> dict[Value, int]:
        """The stage of each parameter: as named, else the first that reads it."""
        owners = dict(self.parameters)
        for node, stage in of.items():
            for value in node.uses:
                for one in self.weights.get(value, ()):
                    owners[one] = owners.get(one, stage)
        return owners


def _once(step: StepParts, parameters: Mapping[Value, int]) -> dict[Value, int]:
    """The stages of values that are made once before the micro batches, of a parameter with a stage."""
    found = dict(parameters)
    for node in step.before:
        stages = [found[value] for value in node.uses if value in found]
        if stages:
            found.update(dict.fromkeys(node.results, max(stages)))
    return found


def made_of_parameters(step: StepParts) -> dict[Value, tuple[Value, ...]]:
    """The values that are there before the micro batches and follow from parameters, their rows too, and from which."""
    graph = step.graph
    inputs = [value for value in graph.inputs if graph.role_of[value] == PARAMETER]
    found: dict[Value, tuple[Value, ...]] = {value: (value,) for value in inputs}
    for node in step.before:
        read = tuple(dict.fromkeys(one for value in node.uses for one in found.get(value, ())))
        if read:
            found.update(dict.fromkeys(node.results, read))
    rows = {one: found[whole] for one, (whole, _) in step.body.slices.items() if whole in found}
    return {**found, **rows}
