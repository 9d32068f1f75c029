"""What a model's attention and experts move, and what its forward pass leaves to the backward one.

Sizes from its graph alone, for the formulas of papers on named plans (`paper_formulas.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from functools import cached_property

from autoshard.ir.graph import Node, Value
from autoshard.search.named.pairs import COLUMNS, ROWS
from autoshard.search.named.structure import WeightUse
from benchmarks.paper_scope import EXCHANGES
from benchmarks.paper_sizes import Sizes, is_form


class Activations(Sizes):
    """Sizes of a training step, with those of its activations."""

    # -- attention and experts

    @property
    def attentions(self) -> list[tuple[int, int]]:
        """Bytes of the queries and results, and of the keys and values, of each attention of the forward pass."""
        found = [(node.results[0], *node.operands) for node in self.structure.forward if node.op.name == "Attention"]
        return [
            (query.type.nbytes + made.type.nbytes, key.type.nbytes + value.type.nbytes)
            for made, query, key, value, *_ in found
        ]

    @property
    def dispatched(self) -> int:
        """By how many bytes the rows that experts get are more than the tokens that go to them alone, not to products
        that all tokens take besides."""
        found = [node for node in self.structure.forward if node.op.name == "DispatchTokens"]
        columns = [use for node, use in self.uses.items() if self._kinds.get(node) == COLUMNS]
        shared = {use.node.operands[use.data] for use in columns}
        tokens = sum(node.operands[0].type.nbytes for node in found if node.operands[0] not in shared)
        return sum(node.results[0].type.nbytes for node in found) - tokens

    @cached_property
    def combinations(self) -> list[Node]:
        """The products with data that sum rows of experts up for their tokens."""
        rows = [node.results[0] for node, kind in self._kinds.items() if kind == ROWS]
        users = dict.fromkeys((user, value) for value in rows for user in self._users(value))
        return [user for user, value in users if self._is_combined(user, value) and user.op.name not in EXCHANGES]

    @property
    def combined(self) -> int:
        """By how many bytes the rows that are summed up for tokens are more than tokens that are summed for themselves,
        not with what other products make of all."""
        found = [node for node in self.structure.forward if node.op.name == "CombineTokens"] + self.combinations
        rows = sum(max(one.type.nbytes for one in node.operands) for node in found)
        ends = Counter(self._summed(node.results[0]) for node, kind in self._kinds.items() if kind == ROWS)
        alone = (node.results[0].type.nbytes for node in found if ends[self._summed(node.results[0])] == 1)
        return rows - sum(alone)

    @property
    def number_of_experts(self) -> int:
        """How many there are, or what the numbers of several layers have in common."""
        return math.gcd(*(use.node.rule.factors[i].size for use in self.uses.values() for i in use.batch))

    @property
    def exchanged(self) -> int:
        """Bytes of the rows that go to experts and come back from them, in the forward pass and, where these have
        gradients, in the backward one: what products take that have a weight for each expert, and what comes out of
        them, but for what one of them takes from another."""
        experts = [use for use in self.uses.values() if use.batch]
        given = {use.node.results[0] for use in experts}
        reached = {value: self._reached(value, experts) for value in given}
        made = [value for value, nodes in reached.items() if not nodes]
        inner = set().union(*reached.values())
        taken = {self._origin_of_rows(use.node.operands[use.data]) for use in experts if use.node not in inner}
        ends = [*taken, *made]
        back = [one for one in ends if any(map(self._needs_gradient, (one, self._origin(one), self._joins(one))))]
        return sum(one.type.nbytes for one in (*ends, *back))

    def _reached(self, value: Value, experts: list[WeightUse]) -> set[Node]:
        """The products of the same experts that take a value, with no other product between."""
        ahead, seen, ends = [value], {value}, {use.node for use in experts}
        found: set[Node] = set()
        for one in ahead:
            for user in self._users(one):
                if user in ends:
                    found.add(user)
                same = user.op.has_rule and user not in self.uses and not user.is_product
                more = [made for made in user.results if same and made.type.rank == value.type.rank]
                ahead += [made for made in more if made not in seen]
                seen.update(more)
        return found

    def _origin_of_rows(self, value: Value) -> Value:
        """What rows of experts are another form of (cast, turned)."""
        while (made := self.graph.producers.get(value)) is not None:
            if len(made[0].operands) != 1 or not is_form(made[0]) or made[0].op.name == "DispatchTokens":
                return value
            value = made[0].operands[0]
        return value

    @property
    def before(self) -> set[Value]:
        """What is saved that is made of no sum and no stream, and is no column: it lies whole, but for what is combined
        with rows of experts, which are in parts."""
        behind = self._begun | {value for node in self.sums for value in node.results}
        columns = {value for value, _ in self.pairs.columns}
        columns |= {self._base(value) for node in self.combinations for value in node.operands}
        return {value for value in self.saved if value not in columns and behind.isdisjoint(self._ancestors({value}))}

    @cached_property
    def taken(self) -> set[Value]:
        """What products by columns take and the backward pass needs: in parts, or all of it."""
        columns = [use for node, use in self.uses.items() if self._kinds.get(node) == COLUMNS]
        taken = (use.node.operands[use.data] for use in columns)
        saved = self.saved
        return set({base: one for one in taken if (base := self._base(one)) in saved}.values())

    @property
    def masks(self) -> set[Value]:
        """What is saved and all heads of an attention share: masks, slopes by distance."""
        nodes = [node for node in self.structure.forward if node.op.name == "Attention"]
        extra = {value for node in nodes for value in node.operands[3:] if (1, *value.type.shape)[-3] == 1}
        return set(map(self._base, extra)) & self.saved

    @property
    def saved(self) -> set[Value]:
        """What the forward pass leaves for the backward one, but for what is made of parameters or of nothing; of views
        what they are views of."""
        return self._saved(())

    @property
    def saved_but_keys(self) -> set[Value]:
        """The same but for keys and values, of which attention has copies of its own, of the whole sequence."""
        nodes = [node for node in self.structure.forward if node.op.name == "Attention"]
        keys = {value for node in nodes for value in node.operands[1:3]}
        return self._saved(keys) - keys

    @property
    def saved_by_heads(self) -> set[Value]:
        """The same where attention has copies of its own of queries, keys and values, by heads, and of its results."""
        attentions = [node for node in self.structure.forward if node.op.name == "Attention"]
        return self._saved({value for node in attentions for value in node.operands[:3]})

    def _saved(self, copied: Collection[Value]) -> set[Value]:
        fed = (value for node in self.structure.forward for value in node.results if value in self.structure.fed)
        left = (value for value in fed if any(user not in self.forward for user, _ in self.graph.users[value]))
        bases = (value if value in copied else self._base(value) for value in left)
        return {value for value in bases if value in self.graph.producers}

    def _base(self, value: Value) -> Value:
        while (made := self.graph.producers.get(value)) is not None and made[0].op.view and made[0].operands:
            value = made[0].operands[0]
        return value
