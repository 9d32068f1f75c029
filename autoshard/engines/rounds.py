"""Messages between ranks put in rounds, in each of which a rank sends to one other and hears from one, at most."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.engines.boxes import Box, Table

Message = tuple[int, int, tuple[Box, ...]]
"""Who sends, to whom, and which boxes of the sender's block, one behind the other."""


def messages_of(table: Table) -> list[Message]:
    """One message between each two ranks of which one needs boxes of the other's, in the order of the tables' rows."""
    found: dict[tuple[int, int], list[Box]] = {}
    for place in range(max((len(row) for row in table), default=0)):
        for target, row in enumerate(table):
            if place < len(row) and row[place][0] != target:
                found.setdefault((row[place][0], target), []).append(row[place][1])
    return [(source, target, tuple(boxes)) for (source, target), boxes in found.items()]


def rounds_of(table: Table) -> list[Sequence[Message]]:
    """The messages in rounds: each in the first in which neither end is taken.

    >>> rounds_of((((1, ((0, 1, 1),), ((0, 1, 1),), False),), ((0, ((0, 1, 1),), ((0, 1, 1),), False),)))
    [[(1, 0, (((0, 1, 1),),)), (0, 1, (((0, 1, 1),),))]]
    """
    rounds: list[list[Message]] = []
    for message in messages_of(table):
        source, target, _ = message
        free = (row for row in rounds if all(source != one[0] and target != one[1] for one in row))
        row = next(free, None)
        if row is None:
            rounds.append([message])
        else:
            row.append(message)
    return list(rounds)
