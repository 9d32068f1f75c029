"""Seconds that collectives take: rounds times latency plus bytes over bandwidth, by the best algorithm.

`seconds(kind, nbytes, ranks, link)` is the entry; `bytes_moved` is what a rank has to send at least. The
model (Hockney's alpha-beta) has one full-duplex port per rank into a network where any two ranks are equally
far; summing is free. A torus is not like that: there messages of logarithmic algorithms share links.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeVar, cast

import numpy as np

from costmodel.hardware import Link

Bytes = TypeVar("Bytes", float, np.ndarray)

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "slice")


class Algorithm(NamedTuple):
    """A way to run one kind among `ranks` ranks.

    A rank sends `rounds` messages one after the other, `blocks` blocks in all; a block is 1/ranks of the
    bytes that the kind counts.
    """

    name: str
    ranks: int
    rounds: int
    blocks: int

    def seconds(self, nbytes: Bytes, link: Link) -> Bytes:
        """rounds * latency + blocks * (time of one block)."""
        return self.rounds * link.latency + self.blocks * (nbytes / (self.ranks * link.bandwidth))


def seconds(kind: str, nbytes: Bytes, ranks: int, link: Link) -> Bytes:
    """Seconds of the collective `kind` among `ranks` ranks, by its fastest algorithm.

    `nbytes` (a number or an array) counts the result of an all_gather, the input of a reduce_scatter and the
    local tensor of every other kind. One rank costs 0, and so does a slice; zero bytes still cost the
    latency. A link that was measured answers from its curves: for a group between two measured sizes as for the
    larger, beyond the largest in proportion. ValueError for an unknown kind, fewer than 1 rank, or negative bytes.
    """
    best = _undominated(kind, ranks)
    # `is not True` sends NaN, arrays and numpy numbers to the full check; plain numbers pay one comparison.
    if (nbytes >= 0) is not True:
        _check_bytes(kind, nbytes)
    if link.curves and (measured := link.curve(kind, ranks)) is not None:
        return measured.seconds(nbytes) * max(1.0, ranks / measured.ranks)
    latency, block = link.latency, nbytes / (ranks * link.bandwidth)
    if len(best) == 1:
        _, _, rounds, blocks = best[0]
        return rounds * latency + blocks * block
    times = [rounds * latency + blocks * block for _, _, rounds, blocks in best]
    return cast(Bytes, np.min(np.stack(times), axis=0) if isinstance(block, np.ndarray) else min(times))


def all_reduce(nbytes: Bytes, ranks: int, link: Link) -> Bytes:
    """Seconds to sum a tensor of `nbytes` over all ranks, with the whole sum on each of them."""
    return seconds("all_reduce", nbytes, ranks, link)


def all_gather(nbytes_of_result: Bytes, ranks: int, link: Link) -> Bytes:
    """Seconds to join one block per rank into a result of `nbytes_of_result` on each of them."""
    return seconds("all_gather", nbytes_of_result, ranks, link)


def reduce_scatter(nbytes_of_input: Bytes, ranks: int, link: Link) -> Bytes:
    """Seconds to sum an input of `nbytes_of_input` per rank, each keeping one block; equals `all_gather`."""
    return seconds("reduce_scatter", nbytes_of_input, ranks, link)


def all_to_all(local_nbytes: Bytes, ranks: int, link: Link) -> Bytes:
    """Seconds to exchange blocks of a local tensor of `local_nbytes`, one block for each rank."""
    return seconds("all_to_all", local_nbytes, ranks, link)


def permute(nbytes: Bytes, ranks: int, link: Link) -> Bytes:
    """Seconds for each rank to send its `nbytes` to one other rank, all at once."""
    return seconds("permute", nbytes, ranks, link)


def bytes_moved(kind: str, nbytes: Bytes, ranks: int) -> Bytes:
    """Bytes one rank must send under the algorithm that sends least; `nbytes` and errors as in `seconds`."""
    least = _undominated(kind, ranks)[-1]
    _check_bytes(kind, nbytes)
    return nbytes * least.blocks / ranks


@lru_cache(maxsize=1024)
def algorithms(kind: str, ranks: int) -> tuple[Algorithm, ...]:
    """All algorithms of a kind among `ranks` ranks.

    Doubling and halving: Bruck et al., IEEE TPDS 8(11), 1997, gather among any n in ceil(log2 n) rounds; run
    backwards the same pattern scatters a commutative sum (recursive halving when n is a power of two: Thakur,
    Rabenseifner and Gropp, IJHPCA 19(1), 2005). ValueError for an unknown kind or fewer than 1 rank.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of collective {kind!r}; there are {', '.join(KINDS)}")
    if ranks < 1:
        raise ValueError(f"{kind} among {ranks} ranks: there must be at least 1")
    return tuple(Algorithm(name, ranks, rounds, blocks) for name, rounds, blocks in _rounds_and_blocks(kind, ranks))


def _rounds_and_blocks(kind: str, ranks: int) -> tuple[tuple[str, int, int], ...]:
    if ranks == 1 or kind == "slice":
        return (("nothing to send", 0, 0),)
    others, logarithm = ranks - 1, (ranks - 1).bit_length()
    if kind == "permute":
        return (("direct", 1, ranks),)
    if kind == "all_to_all":
        # Round k of Bruck's forwards all blocks whose distance has bit k set.
        return ("pairwise", others, others), ("bruck", logarithm, _bits_below(ranks))
    if kind == "all_reduce":
        exchange = _exchange_rounds(ranks)
        return (
            ("ring", 2 * others, 2 * others),
            ("halving, doubling", 2 * logarithm, 2 * others),
            ("tree", 2 * logarithm, 2 * logarithm * ranks),  # whole tensors up and down a binomial tree
            ("whole exchange", exchange, exchange * ranks),
            ("gather all", logarithm, others * ranks),  # every rank gathers all tensors and sums them
        )
    return ("ring", others, others), ("doubling", logarithm, others)


@lru_cache(maxsize=1024)
def _undominated(kind: str, ranks: int) -> tuple[Algorithm, ...]:
    """The algorithms that are fastest for some size and link: fewest rounds first, least sent last."""
    kept: list[Algorithm] = []
    for candidate in sorted(algorithms(kind, ranks), key=lambda a: (a.rounds, a.blocks)):
        if not kept or candidate.blocks < kept[-1].blocks:
            kept.append(candidate)
    return tuple(kept)


def _exchange_rounds(ranks: int) -> int:
    """Rounds to swap whole tensors with the ranks at distance 1, 2, 4, ...

    Ranks beyond the largest power of two hand their tensor in first and get the sum last: two rounds more.
    """
    beyond = ranks & (ranks - 1)
    return ranks.bit_length() - 1 + (2 if beyond else 0)


def _bits_below(ranks: int) -> int:
    """Ones in the binary numbers 0 .. ranks-1 together."""
    ones = 0
    for k in range((ranks - 1).bit_length()):
        whole, rest = divmod(ranks, 2 << k)
        ones += (whole << k) + max(0, rest - (1 << k))
    return ones


def _check_bytes(kind: str, nbytes: float | np.ndarray) -> None:
    if not np.all(np.asarray(nbytes) >= 0):
        raise ValueError(f"{kind} of {nbytes} bytes: a size is a number from 0 up")
