"""Random transfers between meshes on virtual ranks: none is wrong, and how many bytes go over the slow links.

    python -m benchmarks.transfers --pairs 5000

Each pair is two layouts on two groups of ranks, some of them partial where the value is left. The value goes the way
that costs least on two levels of links, in which nodes have four ranks; beside the bytes from node to node stands what
has to go at least, as the ranks of each node need it together. These values are small, at most 14 KB, so that what a
message takes at the start decides; the second line is of links that take nothing there, as is right for large values.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, replace

from autoshard.pipeline.transfers.deal import GroupLayout
from benchmarks.random_pairs import check_pair, check_way, random_layout, random_pair
from costmodel import Link, Topology, preset

LEVELS = Topology(((4, Link("inside", 2e-6, 200e9)), (None, Link("between", 5e-6, 25e9))))


def main() -> None:
    """Check so many pairs and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw, found = random.Random(given.seed), {"": Count(), " without latency": Count()}
    presets = [replace(preset("cpu"), topology=levels) for levels in (LEVELS, without_latency(LEVELS))]
    for _ in range(given.pairs):
        before, after = random_pair(draw)
        check_pair(before, after)
        left = random_layout(draw, before.group.mesh, len(before.shape), partial=True)
        source = GroupLayout.of(before.group, left, before.shape)
        for hardware, count in zip(presets, found.values(), strict=True):
            count.add(*check_way(source, after, hardware))
    print(f"{given.pairs} pairs, none wrong")
    for name, count in found.items():
        print(f"between nodes{name} {count}")


@dataclass
class Count:
    """Bytes that have gone, those that had to, and how many pairs sent no more than these."""

    moved: int = 0
    least: int = 0
    exact: int = 0

    def add(self, moved: int, least: int) -> None:
        """One more pair."""
        self.moved, self.least, self.exact = self.moved + moved, self.least + least, self.exact + (moved == least)

    def __str__(self) -> str:
        return (
            f"{self.moved} bytes, at least {self.least}: {self.moved / self.least:.3f} times; {self.exact} at the bound"
        )


def without_latency(topology: Topology) -> Topology:
    """The same links, which take nothing to begin a message."""
    return Topology(tuple((span, replace(link, latency=0.0)) for span, link in topology.levels))


if __name__ == "__main__":
    main()
