"""Random transfers between meshes on virtual ranks: none is wrong, and how many bytes go over the slow links.

    python -m benchmarks.transfers --pairs 5000

Each pair is two layouts on two groups of ranks, some of them partial where the value is left. The value goes the way
that costs least on two levels of links, in which nodes have four ranks; beside the bytes from node to node stands what
has to go at least, as the ranks of each node need it together.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace

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
    draw, hardware = random.Random(given.seed), replace(preset("cpu"), topology=LEVELS)
    moved = least = exact = 0
    for _ in range(given.pairs):
        before, after = random_pair(draw)
        check_pair(before, after)
        left = random_layout(draw, before.group.mesh, len(before.shape), partial=True)
        nbytes, bound = check_way(GroupLayout.of(before.group, left, before.shape), after, hardware)
        moved, least, exact = moved + nbytes, least + bound, exact + (nbytes == bound)
    print(f"{given.pairs} pairs, none wrong; between nodes {moved} bytes, at least {least}: {moved / least:.3f} times")
    print(f"{exact} of them at the bound")


if __name__ == "__main__":
    main()
