"""Local search on an assignment: iterated conditional modes, then chains that follow one change as far as it pays.

A sweep gives each operator the strategy that is best while all others stay, until none has a better one (Besag, 1986).
Where that ends, a chain starts with a change that costs more for now; neighbours take their best responses, theirs
after them, and the chain is kept up to its best moment if that is an improvement (Lin and Kernighan, 1973, here for a
graph of choices). Order and limits are fixed numbers of steps, so equal problems have equal plans.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence

from autoshard.core.enumerate import listing
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.search.assignment import Assignment, Choice
from autoshard.search.constraints import permits
from autoshard.search.domains import mesh_units_of
from autoshard.search.greedy.candidates import joined
from autoshard.search.local.local_cost import LocalCost

LEAST_GAIN = 1e-9
"""What an improvement must save, as a share of the assignment's cost; less may be rounding."""
MOST_VISITS = 12
"""How often a sweep visits an operator, on average."""
WORTH = 0.6
"""Chains and joint moves begin where more is paid than this share of what an operator takes in the mean: what they can
save is hardly ever more than what is paid there."""
MOST_LISTED = 80
"""Up to how many strategies an operator's whole list is tried."""
WIDTH, LENGTH = 4, 40
"""With how many strategies of one operator chains start, and how many operators one changes."""


class LocalSearch:
    """Improves one assignment in place; only `free` nodes change.

    Args:
        known: strategies to try at a node beside those that its surroundings and its rule suggest.
        answers: what surroundings have been answered before; may be shared by assignments of one pricing.
    """

    def __init__(
        self,
        assignment: Assignment,
        free: Sequence[Node],
        known: dict[Node, tuple[Choice, ...]],
        responses: dict[tuple, tuple[float, Choice]],
    ) -> None:
        self.assignment, self.pricing = assignment, assignment.pricing
        self.mesh = assignment.pricing.problem.mesh
        self.free, self.known, self.responses = dict.fromkeys(free), known, responses
        self.units = mesh_units_of(self.mesh, self.pricing.graph)
        self.least = LEAST_GAIN * assignment.seconds
        self._near: dict[Node, tuple[Node, ...]] = {}
        self._least_work: dict[Node, float] = {}

    def near(self, node: Node) -> tuple[Node, ...]:
        """The other free nodes that a change of this one touches."""
        known = self._near.get(node)
        if known is None:
            near = dict.fromkeys(other for term in self.pricing.of_node[node] for other in term.nodes)
            near.pop(node, None)
            known = self._near[node] = tuple(other for other in near if other in self.free)
        return known

    @property
    def worth(self) -> float:
        """Seconds that must be paid around something for a move to begin there."""
        return WORTH * self.assignment.seconds / max(len(self.free), 1)

    # -- single operators

    def sweep(self, nodes: Iterable[Node]) -> None:
        """Give operators their best strategies until none has a better one, neighbours of changed ones again."""
        queue = deque(dict.fromkeys(nodes))
        waiting = set(queue)
        left = MOST_VISITS * len(self.free)
        while queue and left:
            left -= 1
            node = queue.popleft()
            waiting.discard(node)
            gain, best = self.best_response(node)
            if gain < 0:
                self.assignment.change(node, best)
                fresh = [other for other in self.near(node) if other not in waiting]
                queue.extend(fresh)
                waiting.update(fresh)

    def best_response(self, node: Node) -> tuple[float, Choice]:
        """The best choice while all else stays, and what it costs more than the present one: less than 0, or 0 with
        the present one."""
        now = self.assignment.chosen[node]
        if self._at_best(node, now):
            return 0.0, now
        local_cost = LocalCost(self.assignment, node)
        key = (now, self.known.get(node), local_cost.key)
        if key not in self.responses:
            base = local_cost.price(now)
            others = [choice for choice in self.candidates(node) if choice is not now]
            best = local_cost.cheapest(others, limit=base - self.least)
            self.responses[key] = (best[0][0] - base, best[0][1]) if best else (0.0, now)
        return self.responses[key]

    def _at_best(self, node: Node, now: Choice) -> bool:
        """Whether it shows at once that no choice is better: with what is paid around it, this one takes no more than
        any takes for its work alone."""
        least = self._least_work.get(node)
        if least is None:
            listed = self._listed(node)
            choices = (*listed, *self.known.get(node, ())) if listed else ()
            least = self._least_work[node] = min([one.least for one in choices], default=-math.inf)
        paid = now.work - self.least
        if paid > least:
            return False
        for term in self.pricing.of_node[node]:
            paid += self.assignment.costs[term]
            if paid > least:
                return False
        return True

    def candidates(self, node: Node) -> dict[Choice, None]:
        """The known choices; all if they are few, on whole axes unless neighbours use parts of them; and what the
        layouts around suggest where there are no others, or where operands are left as sums."""
        found = dict.fromkeys(self.known.get(node, ()))
        operands, wanted = self._around(node)
        around = dict.fromkeys(itertools.chain(*operands, *wanted))
        listed = self._listed(node, all([self.units.make(layout.used) for layout in around]))
        if not listed or node.op.linear and any([layout.partial for layouts in operands for layout in layouts]):
            suggested = joined(node, self.mesh, operands, wanted)
            found.update((self.pricing.choice(node, one), None) for one in suggested if permits(node, one))
        found.update(listed)
        return found

    def _listed(self, node: Node, whole: bool = True) -> dict[Choice, None]:
        """All choices of a node, or those on whole axes, if they are not many; remembered by what equal nodes share."""
        key = self.pricing.class_of[node], whole
        known = self.pricing.listed.get(key)
        if known is None:
            # What are too many on whole axes are too many on their parts.
            fits = whole or bool(self._listed(node))
            axes = self.units.whole_names if whole else frozenset()
            listed = listing(node.rule, self.mesh, axes) if fits else None
            few = listed.strategies if listed is not None and len(listed) <= MOST_LISTED else ()
            known = {self.pricing.choice(node, one): None for one in few if permits(node, one)}
            self.pricing.listed[key] = known
        return known

    def _around(self, node: Node) -> tuple[list[tuple[Layout, ...]], list[tuple[Layout, ...]]]:
        """The layouts that operands are left in, and those in which others want the results."""
        graph, chosen = self.pricing.graph, self.assignment.chosen
        operands = []
        for value in node.operands:
            source = graph.producers.get(value)
            if source is not None:
                operands.append((chosen[source[0]].results[source[1]],))
            else:
                operands.append(tuple(dict.fromkeys(chosen[user].operands[i] for user, i in graph.users[value])))
        wanted = [
            tuple(dict.fromkeys(chosen[user].operands[i] for user, i in graph.users[value])) for value in node.results
        ]
        return operands, wanted

    # -- chains

    def chains(self, most: float = math.inf) -> None:
        """Try chains from the operators around which something is redistributed, those first that pay most, and sweep
        where one was accepted.

        Args:
            most: how many changes may be tried.
        """
        self.tries, worth = most, self.worth
        paid = {node: sum(self.assignment.costs[term] for term in self.pricing.of_node[node]) for node in self.free}
        for start in sorted(self.free, key=lambda node: -paid[node]):
            if self.tries <= 0 or paid[start] <= worth:
                return
            changed = self._from(start)
            if changed:
                self.sweep(changed)

    def _from(self, start: Node) -> list[Node]:
        """Try chains from the next best strategies of an operator; the nodes that an accepted one changed."""
        for cost, choice in self._ranked(start):
            changed = self._chain(start, choice, cost)
            if changed:
                return changed
        return []

    def _ranked(self, node: Node) -> list[tuple[float, Choice]]:
        """The WIDTH best candidates but the present one with what a change to each would cost more, best first."""
        now, local_cost = self.assignment.chosen[node], LocalCost(self.assignment, node)
        base, others = local_cost.price(now), [choice for choice in self.candidates(node) if choice is not now]
        return [(seconds - base, choice) for seconds, choice in local_cost.cheapest(others, WIDTH)]

    def _chain(self, start: Node, choice: Choice, cost: float) -> list[Node]:
        moved = {start: self.assignment.chosen[start]}
        self.assignment.change(start, choice)
        return self.extend_chain(moved, cost)

    def extend_chain(self, moved: dict[Node, Choice], cost: float) -> list[Node]:
        """Let neighbours of changed nodes answer, theirs after them, and keep all up to the best moment, if that is an
        improvement; the nodes that are kept changed.

        Args:
            moved: what the changed nodes had before, in the order of the changes.
            cost: what these changes cost, at least 0 unless they are an improvement already.
        """
        assignment, best, kept = self.assignment, 0.0, 0
        queue = deque(other for node in moved for other in self.near(node))
        if cost < -self.least:
            best, kept = cost, len(moved)
        while queue and len(moved) < LENGTH:
            node = queue.popleft()
            if node in moved:
                continue
            self.tries -= 1
            gain, best_response = self.best_response(node)
            if gain >= 0:
                continue
            moved[node] = assignment.chosen[node]
            assignment.change(node, best_response)
            cost += gain
            if cost < best - self.least:
                best, kept = cost, len(moved)
            queue.extend(self.near(node))
        journal = list(moved)
        for node in reversed(journal[kept:]):
            assignment.change(node, moved[node])
        return journal[:kept]
