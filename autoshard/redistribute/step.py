"""Step: one collective (or local cut) that takes a tensor from one layout to another.

| kind           | what happens                                         | elements one rank receives   |
|----------------|------------------------------------------------------|------------------------------|
| slice          | keep one piece of a dim                              | 0                            |
| keep           | each value stays a term on one rank, others hold zero| 0                            |
| all_gather     | pieces of a dim joined                               | (n-1)/n of the result        |
| all_reduce     | terms combined                                       | 2(n-1)/n of the local tensor |
| reduce_scatter | terms combined, one piece of a dim kept              | (n-1)/n of the local tensor  |
| all_to_all     | pieces of one dim exchanged for pieces of another    | (n-1)/n of the local tensor  |
| permute        | blocks, or in rounds pieces of them, change hands    | what it lacks of its result  |
| permute, boxes | each rank fetches boxes of any size (`fetch.py`)     | what it lacks of its result  |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import Groups, size_of
from autoshard.redistribute.fetch import Fetch, FetchRound
from autoshard.redistribute.replicate_to_partial import ReplicateToPartial, replicate_to_partial
from autoshard.redistribute.routing import Round, Routing, route

KINDS = ("slice", "keep", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute")
LOCAL_KINDS = ("slice", "keep")


@dataclass(frozen=True)
class Step:
    """From layout `before` to `after` by one collective of `kind` along `axes`.

    `dim` is the dim that is cut (slice, reduce_scatter, all_to_all) or joined (all_gather); `to_dim` the dim
    that an all_to_all joins. A permute's axes are those along which blocks may change hands; with several
    `rounds` a rank receives its block in as many pieces, each from another rank. One that is `fetched` moves boxes, as
    one message between each two ranks, and terms may begin on the way. A keep's axes are those of the new terms
    (`replicate_to_partial.py` says which value stays where).
    """

    kind: str
    before: Layout
    after: Layout
    axes: Refs
    dim: int | None = None
    to_dim: int | None = None
    fetched: Fetch | None = None

    @staticmethod
    def fetch(one: Fetch) -> Step:
        """The step that fetches boxes."""
        return Step("permute", one.before, one.after, one.axes, fetched=one)

    @property
    def communicates(self) -> bool:
        return self.kind not in LOCAL_KINDS

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.before.mesh, self.axes)

    @property
    def reduction(self) -> str:
        return self.before.reduction

    @cached_property
    def routing(self) -> Routing:
        """Who sends what to whom in a permute."""
        found = route(self.before, self.after)
        assert found is not None, f"no permute leads from [{self.before}] to [{self.after}]"
        return found

    @property
    def rounds(self) -> int:
        """In how many rounds a permute runs; 1 for the other kinds."""
        if self.fetched is not None:
            return self.fetched.rounds
        return self.routing.rounds if self.kind == "permute" else 1

    def round(self, number: int) -> Round | FetchRound:
        """Who sends to whom in one of a permute's rounds."""
        return self.routing.round(number) if self.fetched is None else self.fetched.round(number)

    @property
    def messages(self) -> int:
        """In how many of a permute's rounds something is sent: not in the first if each rank keeps its own piece."""
        if self.fetched is not None:
            return self.fetched.messages
        return self.rounds - (self.kind == "permute" and self.routing.share < 1)

    def elements_moved(self, shape: Sequence[int]) -> float:
        """Elements that one rank receives at most (and sends), for a tensor of this global shape."""
        if self.kind in LOCAL_KINDS:
            return 0.0
        if self.fetched is not None:
            return self.fetched.elements_moved(shape)
        if self.kind == "permute":
            return self.routing.share * self.after.local_size(shape)
        n = size_of(self.axes)
        local = self.before.local_size(shape)
        if self.kind == "all_gather":
            return (n - 1) * local
        return (2 if self.kind == "all_reduce" else 1) * (n - 1) / n * local

    def nbytes_priced(self, shape: Sequence[int], itemsize: int) -> float:
        """The size by which costmodel prices it: a gather's and a permute's result, what is fetched in all, else the
        local tensor."""
        if self.fetched is not None:
            return self.fetched.elements_moved(shape) * itemsize
        layout = self.after if self.kind in ("all_gather", "permute") else self.before
        return layout.local_size(shape) * itemsize

    def source_of(self) -> Callable[[int], int]:
        """For a permute: whose block each rank receives (in the first round), a bijection of the ranks."""
        return self.round(0).sources.__getitem__

    def __str__(self) -> str:
        over = ".".join(map(self.before.mesh.show_ref, self.axes))
        dim = "" if self.dim is None else f" dim={self.dim}"
        to_dim = "" if self.to_dim is None else f" to_dim={self.to_dim}"
        op = f" op={self.reduction}" if self.kind in ("all_reduce", "reduce_scatter") else ""
        rounds = f" rounds={self.rounds}" if self.rounds > 1 else ""
        if self.fetched is not None:
            rounds = f" boxes={self.messages}"
        return f"{self.kind} over={over}{dim}{to_dim}{op}{rounds}"

    @cached_property
    def to_partial(self) -> ReplicateToPartial:
        """Which value of a keep stays in whose term."""
        found = replicate_to_partial(self.before, self.after)
        assert found is not None, f"no keep leads from [{self.before}] to [{self.after}]"
        return found
