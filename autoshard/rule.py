"""Rule: which dims of an operator's operands and results belong together, in einsum-like text.

    m k, k n -> m n          each letter is a factor; k is missing on the right: splitting it leaves a partial
    sum ... m [n] -> ... m [n]   ... stands for any leading dims; a rank needs the whole of [n] (softmax,
    sort) b (h d) -> b h d         (h d): h major, d minor, in one dim (reshape) m <n> -> m <n>           <n>:
    splitting needs neighbours (pad, slice, windows); n! is blocked for propagation m n, () -> m n
    () is a scalar operand; 1 is a dim that no factor belongs to m k -> m by max          the reduction of
    factors missing on the right, when it is not a sum

`bind` meets the text with shapes; a bound Rule carries the factor sizes and prints them: `m k -> m {m=4,
k=6}`. The factor kinds are Shardy's (attrs.td, OpShardingRule).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from autoshard.errors import RuleError

PASS, REDUCTION, REPLICATE, PERMUTATION = "pass", "reduction", "replicate", "permutation"
Dim = tuple[int, ...]
_MARKS = {REPLICATE: "[{}]", PERMUTATION: "<{}>"}


@dataclass(frozen=True)
class Factor:
    """A letter of a rule: its extent, how it behaves when split, and whether propagation must stop at it."""

    name: str
    size: int
    kind: str = PASS
    blocked: bool = False

    @property
    def splittable(self) -> bool:
        """Whether ranks may hold parts of it while the operator runs."""
        return self.kind in (PASS, REDUCTION) and self.size > 1


@dataclass(frozen=True)
class Rule:
    """A bound rule: per operand and result, per dim, the factors in it, major to minor, as indices into `factors`."""

    factors: tuple[Factor, ...]
    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    reduction: str = "sum"

    def __str__(self) -> str:
        left = ", ".join(map(self._show, self.operands))
        right = ", ".join(map(self._show, self.results))
        by = "" if self.reduction == "sum" else f" by {self.reduction}"
        sizes = ", ".join(f"{factor.name}={factor.size}" for factor in self.factors)
        return f"{left} -> {right}{by} {{{sizes}}}"

    def _show(self, dims: tuple[Dim, ...]) -> str:
        return " ".join(map(self._show_dim, dims)) or "()"

    def _show_dim(self, dim: Dim) -> str:
        names = " ".join(self._show_factor(self.factors[i]) for i in dim)
        return f"({names})" if len(dim) > 1 else names or "1"

    @staticmethod
    def _show_factor(factor: Factor) -> str:
        return _MARKS.get(factor.kind, "{}").format(factor.name) + ("!" if factor.blocked else "")

    @staticmethod
    def parse(text: str) -> Rule:
        """Read what `str(rule)` prints."""
        match = re.fullmatch(r"(.*)\{(.*)\}\s*", text.strip())
        if match is None:
            raise RuleError(f"cannot read rule {text!r}: the factor sizes {{m=4, k=6}} are missing")
        sizes = dict(pair.split("=") for pair in re.split(r",\s*", match[2]) if pair)
        return _Pattern.parse(match[1]).build({name: int(size) for name, size in sizes.items()}, list(sizes))

    @cached_property
    def names(self) -> dict[str, int]:
        return {factor.name: i for i, factor in enumerate(self.factors)}

    @cached_property
    def contracted(self) -> tuple[int, ...]:
        """The factors that are reduced away: a split of one leaves the results partial."""
        return tuple(i for i, factor in enumerate(self.factors) if factor.kind == REDUCTION)

    def result_shape(self, result: int) -> tuple[int, ...]:
        return tuple(math.prod(self.factors[i].size for i in dim) for dim in self.results[result])

    @cached_property
    def work(self) -> int:
        """Number of index combinations: the product of all factor sizes."""
        return math.prod(factor.size for factor in self.factors)


def bind(
    text: str,
    operands: Sequence[Sequence[int]],
    sizes: Mapping[str, int] | None = None,
    what: str = "rule",
) -> Rule:
    """Meet a rule text with operand shapes; `sizes` gives factors that no operand has.

    Dims under `...` are aligned at the right; a dim of size 1 facing a larger one is broadcast and has no
    factor.

    Raises:
        RuleError: text that cannot be read, another number of operands or dims, or sizes that disagree.
    """
    return _bind(text, tuple(tuple(shape) for shape in operands), tuple((sizes or {}).items()), what)


@lru_cache(maxsize=65536)
def _bind(
    text: str, shapes: tuple[tuple[int, ...], ...], sizes: tuple[tuple[str, int], ...], what: str
) -> Rule:
    return _Pattern.parse(text).bind(shapes, dict(sizes), what)


@dataclass(frozen=True)
class _Pattern:
    """A rule text taken apart: per tensor a tuple of dims, each a tuple of factor names; `...` and `1` stay words."""

    text: str
    operands: tuple[tuple[tuple[str, ...], ...], ...]
    results: tuple[tuple[tuple[str, ...], ...], ...]
    kinds: dict[str, str]
    blocked: frozenset[str]
    reduction: str

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> _Pattern:
        body, _, by = text.partition(" by ")
        if body.count("->") != 1:
            raise RuleError(f"cannot read this rule\n    {text}\n  it needs exactly one '->'")
        left, right = body.split("->")
        kinds: dict[str, str] = {}
        blocked: set[str] = set()

        def read(side: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
            return tuple(_read_tensor(part, text, kinds, blocked) for part in side.split(","))

        return _Pattern(text, read(left), read(right), kinds, frozenset(blocked), by.strip() or "sum")

    def bind(self, shapes: Sequence[Sequence[int]], sizes: dict[str, int], what: str) -> Rule:
        if len(shapes) != len(self.operands):
            raise RuleError(f"{what} ({self.text}) takes {len(self.operands)} operands, not {len(shapes)}")
        lead = max(
            (
                len(shape) - len(dims) + 1
                for shape, dims in zip(shapes, self.operands, strict=True)
                if ("...",) in dims
            ),
            default=0,
        )
        operands = []
        found: dict[str, tuple[int, str]] = {name: (size, "given") for name, size in sizes.items()}
        for i, (shape, dims) in enumerate(zip(shapes, self.operands, strict=True)):
            expanded = _expand(dims, len(shape), lead)
            if len(expanded) != len(shape):
                raise RuleError(
                    f"{what} ({self.text}): operand {i} has {len(shape)} dims {tuple(shape)}, the rule has {len(dims)}"
                )
            operands.append(expanded)
            self._collect(expanded, shape, found, f"operand {i} {tuple(shape)}", what)
        operands = [
            tuple(
                () if size == 1 and _broadcast(dim, found) else dim
                for dim, size in zip(dims, shape, strict=True)
            )
            for dims, shape in zip(operands, shapes, strict=True)
        ]
        results = tuple(_expand(dims, None, lead) for dims in self.results)
        for name in {name for dims in results for dim in dims for name in dim} - set(found):
            raise RuleError(
                f"{what} ({self.text}): the size of {name} follows from no operand {tuple(map(tuple, shapes))}"
            )
        plain = _Pattern(self.text, tuple(operands), results, self.kinds, self.blocked, self.reduction)
        return plain.build({name: size for name, (size, _) in found.items()}, None)

    def _collect(
        self, dims: tuple, shape: Sequence[int], found: dict[str, tuple[int, str]], where: str, what: str
    ) -> None:
        for dim, size in zip(dims, shape, strict=True):
            unknown = [name for name in dim if name not in found]
            known = math.prod(found[name][0] for name in dim if name in found)
            if len(unknown) == 1 and size % known == 0:
                found[unknown[0]] = (size // known, where)
                continue
            if _broadcast(dim, found) and (size == 1 or known == 1):
                found[dim[0]] = max(found[dim[0]], (size, where))
                continue
            if unknown or known != size:
                names = " ".join(dim) or "1"
                others = ", ".join(
                    f"{name} is {found[name][0]} in {found[name][1]}" for name in dim if name in found
                )
                raise RuleError(
                    f"{what} ({self.text}): {names} is {size} in {where} but {others or 'unknown'}"
                )

    def build(self, sizes: Mapping[str, int], order: list[str] | None) -> Rule:
        """The bound rule; factors in order of first use (or as listed)."""
        used = [name for dims in (*self.operands, *self.results) for dim in dims for name in dim]
        names = order if order is not None else list(dict.fromkeys(used))
        missing = set(used) - set(sizes)
        if missing:
            raise RuleError(f"rule {self.text!r} gives no size for {', '.join(sorted(missing))}")
        index = {name: i for i, name in enumerate(names)}
        kept = {name for dims in self.results for dim in dims for name in dim}

        def kind(name: str) -> str:
            return self.kinds.get(name, PASS if name in kept else REDUCTION)

        def indices(dims: tuple[tuple[str, ...], ...]) -> tuple[Dim, ...]:
            return tuple(tuple(index[name] for name in dim) for dim in dims)

        factors = tuple(Factor(name, sizes[name], kind(name), name in self.blocked) for name in names)
        return Rule(
            factors, tuple(map(indices, self.operands)), tuple(map(indices, self.results)), self.reduction
        )


def _broadcast(dim: tuple[str, ...], found: Mapping[str, tuple[int, str]]) -> bool:
    """Only dims under `...` broadcast; their names start with a dot-free digit prefix that no text can hold."""
    return len(dim) == 1 and dim[0].startswith("_") and dim[0] in found


def _expand(dims: tuple[tuple[str, ...], ...], rank: int | None, lead: int) -> tuple[tuple[str, ...], ...]:
    """Replace `...` by the leading dims _0 .. _lead-1, right-aligned for an operand of `rank` dims."""
    if ("...",) not in dims:
        return dims
    place = dims.index(("...",))
    count = lead if rank is None else rank - len(dims) + 1
    ellipsis = tuple((f"_{i}",) for i in range(lead - count, lead))
    return dims[:place] + ellipsis + dims[place + 1 :]


def _read_tensor(
    part: str, text: str, kinds: dict[str, str], blocked: set[str]
) -> tuple[tuple[str, ...], ...]:
    words = re.findall(r"\.\.\.|\(|\)|\[\w+\]!?|<\w+>!?|\w+!?|\S", part)
    if words == ["(", ")"] or not words:
        return ()
    dims: list[tuple[str, ...]] = []
    group: list[str] | None = None
    for word in words:
        if word == "(" and group is None:
            group = []
        elif word == ")" and group is not None:
            dims.append(tuple(group))
            group = None
        elif word == "..." and group is None:
            dims.append(("...",))
        elif word == "1" and group is None:
            dims.append(())
        elif re.fullmatch(r"(\[\w+\]|<\w+>|\w+)!?", word) and not word[0].isdigit():
            name = _read_factor(word, kinds, blocked)
            dims.append((name,)) if group is None else group.append(name)
        else:
            column = text.find(part) + max(part.find(word), 0)
            raise RuleError(
                f"cannot read this rule\n    {text}\n    {' ' * column}^ {word!r} cannot stand here"
            )
    if group is not None:
        column = text.find(part) + part.find("(")
        raise RuleError(f"cannot read this rule\n    {text}\n    {' ' * column}^ bracket is never closed")
    return tuple(dims)


def _read_factor(word: str, kinds: dict[str, str], blocked: set[str]) -> str:
    name = word.strip("[]<>!")
    if word.endswith("!"):
        blocked.add(name)
    if word[0] == "[":
        kinds[name] = REPLICATE
    elif word[0] == "<":
        kinds[name] = PERMUTATION
    return name
