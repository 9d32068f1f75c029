"""Elements in sets that are joined, and which are in one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSet(Generic[T]):
    """As scipy.cluster.hierarchy's, whose import takes longer than most plans do.

    >>> sets = DisjointSet("abcd")
    >>> sets.merge("a", "c"), sets.merge("c", "a")
    (True, False)
    >>> sets["c"], sets.subsets()
    ('a', [{'a', 'c'}, {'b'}, {'d'}])
    """

    def __init__(self, elements: Iterable[T] = ()) -> None:
        self._parents: dict[T, T] = {}
        self._sizes: dict[T, int] = {}
        self._places: dict[T, int] = {}
        for one in elements:
            self.add(one)

    def __iter__(self) -> Iterator[T]:
        """The elements in the order in which they came."""
        return iter(self._parents)

    def __getitem__(self, one: T) -> T:
        """The element that stands for the set of another; KeyError for one that was never added."""
        parents = self._parents
        while parents[one] != one:
            parents[one] = one = parents[parents[one]]
        return one

    def add(self, one: T) -> None:
        """An element in a set of its own, if it is new."""
        if one not in self._parents:
            self._places[one] = len(self._parents)
            self._parents[one], self._sizes[one] = one, 1

    def merge(self, one: T, other: T) -> bool:
        """Join the sets of two elements; whether they were two. That of the larger, or else older, stands for both."""
        first, second = self[one], self[other]
        if first == second:
            return False
        if (-self._sizes[first], self._places[first]) > (-self._sizes[second], self._places[second]):
            first, second = second, first
        self._parents[second] = first
        self._sizes[first] += self._sizes[second]
        return True

    def subsets(self) -> list[set[T]]:
        """All sets, in the order of their first elements."""
        found: dict[T, set[T]] = {}
        for one in self._parents:
            found.setdefault(self[one], set()).add(one)
        return list(found.values())
