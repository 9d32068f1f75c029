"""Rule: which dims of an operator's operands and results belong together, in einsum-like text.

    m k, k n -> m n          each letter is a factor; k is missing on the right: its split leaves partial sums
    ... m [n] -> ... m [n]   ... stands for any leading dims; a rank needs the whole of [n] (softmax, sort)
    b (h d) -> b h d         (h d): h major, d minor, in one dim (reshape)
    m <n> -> m <n>           <n>: splitting needs neighbours (pad, slice, windows); n!: propagation stops at n
    b k~, k~ -> b            k~: shardings spread along k, but the operator runs with all of it on each rank
    m <n>^6 -> m <n>^6       n^6: ranks exchange what they need of n; it can be cut into parts that divide 6
    <n>^6, [k]=n -> <n>^6    k=n: k has no split of its own, its dims lie along the axes of n
    m k~^8 -> m              k~^8: ranks put together what their parts come to, and end with all of the result
    m n! -> m [k]&n          k&n: to propagation k and n are one factor of the size of n and the kind of k
    m n, () -> m n           () is a scalar operand; 1 is a dim that no factor belongs to
    m k -> m by max          the reduction of factors missing on the right, when it is not a sum
    -> m n                   no operands

`bind` meets the text with shapes; a bound Rule carries factor sizes and prints them: `m k -> m {m=4, k=6}`.
The factor kinds are Shardy's (attrs.td, OpShardingRule).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from autoshard.util.errors import RuleError
from autoshard.util.text import natural

REDUCTIONS = ("sum", "max", "min", "prod")
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
    whole: bool = False
    exchange: int = 0
    follows: str = ""
    joins: str = ""

    @property
    def splittable(self) -> bool:
        """Whether ranks may hold parts of it while the operator runs.

        `whole` says no for a factor that shardings spread along, but that no local call can run split; unless it is
        reduced and has an `exchange`: then ranks put together what their parts come to. `exchange`
        says yes for any kind, as ranks exchange what their blocks lack; it is the number that counts of parts divide,
        since the dims of such a factor may differ in size. One that `follows` another is split as that one is. One that
        `joins` another is the same to propagation: a look-up that needs one of a dim and makes terms of the other.
        """
        if self.size <= 1 or self.follows:
            return False
        if self.whole:
            return self.kind == REDUCTION and self.exchange > 0
        return self.kind in (PASS, REDUCTION) or self.exchange > 0

    @property
    def even(self) -> int:
        """The number that counts of parts must divide for equal blocks."""
        return self.exchange or self.size


@dataclass(frozen=True)
class Rule:
    """A bound rule: per operand and result, per dim, factors major to minor, as indices into `factors`."""

    factors: tuple[Factor, ...]
    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    reduction: str = "sum"

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Of numbers alone, which hash alike in every process: a pickled rule keeps it."""
        return hash((self.operands, self.results, tuple(factor.size for factor in self.factors)))

    def __str__(self) -> str:
        left = ", ".join(map(self._show, self.operands))
        right = ", ".join(map(self._show, self.results))
        by = "" if self.reduction == "sum" else f" by {self.reduction}"
        sizes = ", ".join(f"{factor.name}={factor.size}" for factor in self.factors)
        return f"{left} -> {right}{by} {{{sizes}}}".strip()

    def _show(self, dims: tuple[Dim, ...]) -> str:
        return " ".join(map(self._show_dim, dims)) or "()"

    def _show_dim(self, dim: Dim) -> str:
        names = " ".join(self._show_factor(self.factors[i]) for i in dim)
        return f"({names})" if len(dim) > 1 else names or "1"

    @staticmethod
    def _show_factor(factor: Factor) -> str:
        marks = "!" * factor.blocked + "~" * factor.whole + (f"^{factor.exchange}" if factor.exchange else "")
        marks += f"={factor.follows}" if factor.follows else ""
        marks += f"&{factor.joins}" if factor.joins else ""
        return _MARKS.get(factor.kind, "{}").format(factor.name) + marks

    @staticmethod
    def parse(text: str) -> Rule:
        """Read what `str(rule)` prints."""
        match = re.fullmatch(r"(.*)\{((?:\s*\w+=[0-9]+\s*,)*(?:\s*\w+=[0-9]+\s*)?)\}\s*", text.strip())
        if match is None:
            raise RuleError(f"cannot read rule {text!r}: it should end with the factor sizes, e.g. {{m=4, k=6}}")
        sizes = {name: natural(size, RuleError) for name, size in re.findall(r"(\w+)=([0-9]+)", match[2])}
        return _Pattern.parse(match[1].rstrip()).build(sizes, list(sizes))

    @cached_property
    def names(self) -> dict[str, int]:
        return {factor.name: i for i, factor in enumerate(self.factors)}

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """For each factor the one whose axes its dims lie along: itself, or the one that it follows."""
        return tuple(self.names.get(factor.follows, i) for i, factor in enumerate(self.factors))

    @cached_property
    def contracted(self) -> tuple[int, ...]:
        """The factors that are reduced away: a split of one leaves the results partial."""
        return tuple(i for i, factor in enumerate(self.factors) if factor.kind == REDUCTION)

    @cached_property
    def multiplied(self) -> tuple[int, ...]:
        """The factors of several operands that no result has, whether or not they can be split: those of products."""
        counts = Counter(i for dims in self.operands for i in {i for dim in dims for i in dim})
        made = {i for dims in self.results for dim in dims for i in dim}
        return tuple(sorted(i for i, count in counts.items() if count > 1 and i not in made))

    @cached_property
    def summed(self) -> tuple[int, ...]:
        """The contracted factors whose split leaves the results partial; of others ranks put their parts together."""
        return tuple(i for i in self.contracted if not self.factors[i].whole)

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


@lru_cache(maxsize=1 << 12)
def _bind(text: str, shapes: tuple[tuple[int, ...], ...], sizes: tuple[tuple[str, int], ...], what: str) -> Rule:
    pattern = _Pattern.parse(text)
    for name in pattern.names():
        if name.startswith("_"):
            raise RuleError(f"{what} ({text}): the name {name} is kept for a dim under '...'")
    return pattern.bind(shapes, dict(sizes), what)


Names = tuple[str, ...]
_WORD = re.compile(r"\.\.\.|\(|\)|(?:\[\w+\]|<\w+>|\w+)!?~?(?:\^[0-9]+)?(?:=\w+)?(?:&\w+)?|\S")


@dataclass(frozen=True)
class _Pattern:
    """A rule text taken apart: per tensor and dim the factor names; `...` stays a word, `1` has no names."""

    text: str
    operands: tuple[tuple[Names, ...], ...]
    results: tuple[tuple[Names, ...], ...]
    kinds: Mapping[str, str]
    blocked: frozenset[str]
    whole: frozenset[str]
    exchanges: Mapping[str, int]
    follows: Mapping[str, str]
    joins: Mapping[str, str]
    reduction: str

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> _Pattern:
        body, by, reduction = text.partition(" by ")
        arrow = body.find("->")
        if body.count("->") != 1:
            column = body.find("->", arrow + 1) if arrow >= 0 else len(body)
            raise _unreadable(text, column, "a rule has exactly one '->'")
        if by and reduction.strip() not in REDUCTIONS:
            raise _unreadable(text, len(body) + len(by), f"a reduction is one of {', '.join(REDUCTIONS)}")
        reader = _RuleReader(text)
        operands, results = reader.side(0, arrow), reader.side(arrow + 2, len(body))
        blocked, whole = frozenset(reader.blocked), frozenset(reader.whole)
        marks = (reader.kinds, blocked, whole, reader.exchanges, reader.follows, reader.joins)
        return _Pattern(text, operands, results, *marks, reduction.strip() or "sum")

    def bind(self, shapes: Sequence[Sequence[int]], sizes: dict[str, int], what: str) -> Rule:
        where = f"{what} ({self.text.strip()})"
        if len(shapes) != len(self.operands):
            raise RuleError(f"{where} takes {len(self.operands)} operands, not {len(shapes)}")
        lead = max((len(shape) - len(dims) + 1 for shape, dims in self._pairs(shapes) if ("...",) in dims), default=0)
        found = {name: (size, "given") for name, size in sizes.items()}
        operands = []
        for i, (shape, dims) in enumerate(self._pairs(shapes)):
            expanded = _expand(dims, len(shape), lead)
            if len(expanded) != len(shape):
                wanted = f"at least {len(dims) - 1}" if ("...",) in dims else len(dims)
                raise RuleError(f"{where}: operand {i} has {len(shape)} dims {tuple(shape)}, the rule has {wanted}")
            operands.append(expanded)
            _collect(expanded, shape, found, f"operand {i} {tuple(shape)}", where)
        operands = [
            tuple(() if size < _width(dim, found) else dim for dim, size in zip(dims, shape, strict=True))
            for dims, shape in zip(operands, shapes, strict=True)
        ]
        results = tuple(_expand(dims, None, lead) for dims in self.results)
        for name in dict.fromkeys(name for dims in results for dim in dims for name in dim):
            if name not in found:
                raise RuleError(f"{where}: the size of {name} follows from no operand {tuple(map(tuple, shapes))}")
        plain = replace(self, operands=tuple(operands), results=results)
        return plain.build({name: size for name, (size, _) in found.items()}, self._order(lead, plain))

    def _pairs(self, shapes: Sequence[Sequence[int]]) -> list[tuple[Sequence[int], tuple[Names, ...]]]:
        return list(zip(shapes, self.operands, strict=True))

    def _order(self, lead: int, plain: _Pattern) -> list[str]:
        """Factors in order of first use, as if every operand had all dims under `...`.

        So the device matrix of an operator follows its largest operand (as in MindSpore).
        """
        used = set(plain.names())
        whole = (_expand(dims, None, lead) for dims in (*self.operands, *self.results))
        return [name for name in dict.fromkeys(name for dims in whole for dim in dims for name in dim) if name in used]

    def names(self) -> Iterator[str]:
        return (name for dims in (*self.operands, *self.results) for dim in dims for name in dim)

    def build(self, sizes: Mapping[str, int], order: list[str]) -> Rule:
        """The bound rule, its factors as listed in `order`."""
        missing = sorted(set(self.names()) - set(sizes))
        if missing:
            raise RuleError(f"rule {self.text.strip()!r} gives no size for {', '.join(missing)}")
        index = {name: i for i, name in enumerate(order)}
        kept = {name for dims in self.results for dim in dims for name in dim}

        def kind(name: str) -> str:
            return self.kinds.get(name, PASS if name in kept else REDUCTION)

        def indices(dims: tuple[Names, ...]) -> tuple[Dim, ...]:
            return tuple(tuple(index[name] for name in dim) for dim in dims)

        factors = tuple(
            Factor(
                name,
                sizes[name],
                kind(name),
                name in self.blocked,
                name in self.whole,
                self.exchanges.get(name, 0),
                self.follows.get(name, ""),
                self.joins.get(name, ""),
            )
            for name in order
        )
        for factor in factors:
            for how, leader in (("follows", factor.follows), ("joins", factor.joins)):
                if leader and leader not in index:
                    raise RuleError(f"rule {self.text.strip()!r}: {factor.name} {how} {leader}, which it lacks")
        return Rule(factors, tuple(map(indices, self.operands)), tuple(map(indices, self.results)), self.reduction)


def _width(dim: Names, found: Mapping[str, tuple[int, str]]) -> int:
    """How wide the result is in a dim that may stretch: an operand narrower than that is broadcast there."""
    return found[dim[0]][0] if _may_stretch(dim) else 0


def _may_stretch(dim: Names) -> bool:
    """Whether a dim stood under `...`: only those broadcast; no rule text may use their names _0, _1, ..."""
    return len(dim) == 1 and dim[0].startswith("_")


def _collect(
    dims: tuple[Names, ...], shape: Sequence[int], found: dict[str, tuple[int, str]], operand: str, where: str
) -> None:
    """Learn factor sizes from the dims of one operand: (size, where it was learnt) by name."""
    for dim, size in zip(dims, shape, strict=True):
        unknown = [name for name in dim if name not in found]
        known = math.prod(found[name][0] for name in dim if name in found)
        if len(unknown) == 1 and known > 0 and size % known == 0:
            found[unknown[0]] = (size // known, operand)
        elif _may_stretch(dim) and 1 in (size, known):
            if known == 1:
                found[dim[0]] = (size, operand)
        elif unknown or known != size:
            names = " ".join(dim) or "1"
            facts = [f"{name} is {found[name][0]} in {found[name][1]}" for name in dim if name in found]
            facts += [f"{name} is not known" for name in unknown]
            because = f" but {', '.join(facts)}" if facts else ""
            raise RuleError(f"{where}: {names} is {size} in {operand}{because}")


def _expand(dims: tuple[Names, ...], rank: int | None, lead: int) -> tuple[Names, ...]:
    """Replace `...` by the leading dims _0 .. _lead-1, right-aligned for an operand of `rank` dims."""
    if ("...",) not in dims:
        return dims
    position = dims.index(("...",))
    count = lead if rank is None else rank - len(dims) + 1
    ellipsis = tuple((f"_{i}",) for i in range(lead - count, lead))
    return dims[:position] + ellipsis + dims[position + 1 :]


def _unreadable(text: str, column: int, why: str) -> RuleError:
    return RuleError(f"cannot read this rule\n    {text}\n    {' ' * column}^ {why}")


class _RuleReader:
    """Reads the tensors of a rule text; collects the marks of its factors."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: dict[str, str] = {}
        self.blocked: set[str] = set()
        self.whole: set[str] = set()
        self.exchanges: dict[str, int] = {}
        self.follows: dict[str, str] = {}
        self.joins: dict[str, str] = {}

    def side(self, start: int, end: int) -> tuple[tuple[Names, ...], ...]:
        """The tensors between two columns, separated by commas; none if there is nothing."""
        tensors = []
        for part in self.text[start:end].split(",") if self.text[start:end].strip() else ():
            tensors.append(self.tensor(start, start + len(part)))
            start += len(part) + 1
        return tuple(tensors)

    def tensor(self, start: int, end: int) -> tuple[Names, ...]:
        words = [(match[0], match.start()) for match in _WORD.finditer(self.text, start, end)]
        if not words:
            raise _unreadable(self.text, start, "a tensor is missing; a scalar is ()")
        if [word for word, _ in words] == ["(", ")"]:
            return ()
        dims: list[Names] = []
        group: list[str] | None = None
        opened = start
        for word, column in words:
            if word == "(" and group is None:
                group, opened = [], column
            elif word == ")" and group:
                dims.append(tuple(group))
                group = None
            elif word == "..." and group is None and ("...",) not in dims:
                dims.append(("...",))
            elif word == "1" and group is None:
                dims.append(())
            elif word[0] in "[<_" or word[0].isalpha():
                name = self.factor(word, column)
                if name in (group or ()) or any(name in dim for dim in dims):
                    raise _unreadable(self.text, column, f"{name} occurs twice in one tensor")
                dims.append((name,)) if group is None else group.append(name)
            else:
                raise _unreadable(self.text, column, f"{word!r} cannot stand here")
        if group is not None:
            raise _unreadable(self.text, opened, "bracket is never closed")
        return tuple(dims)

    def factor(self, word: str, column: int) -> str:
        front, _, joins = word.partition("&")
        front, _, follows = front.partition("=")
        marked, _, exchange = front.partition("^")
        name = marked.strip("[]<>!~")
        if not name or name[0].isdigit():
            raise _unreadable(self.text, column, f"{word!r} cannot stand here")
        kind = {"[": REPLICATE, "<": PERMUTATION}.get(word[0])
        if kind is not None and self.kinds.setdefault(name, kind) != kind:
            raise _unreadable(self.text, column, f"{name} is marked both [{name}] and <{name}>")
        if "!" in word:
            self.blocked.add(name)
        if "~" in word:
            self.whole.add(name)
        if exchange:
            self.exchanges[name] = natural(exchange, RuleError)
        if follows:
            self.follows[name] = follows
        if joins:
            self.joins[name] = joins
        return name


def source_rule(shape: Sequence[int]) -> Rule:
    """The rule of an operator without operands: each dim of the result is a factor of its own."""
    factors = tuple(Factor(f"_{i}", size, PASS) for i, size in enumerate(shape))
    return Rule(factors, (), (tuple((i,) for i in range(len(shape))),))


def decomposed(rule: Rule) -> Rule:
    """The rule of an operator that a decomposition takes the place of: what it needs whole may be split evenly."""
    factors = tuple(
        replace(one, exchange=one.size) if one.kind == REPLICATE and not (one.exchange or one.whole) else one
        for one in rule.factors
    )
    return replace(rule, factors=factors)


def of_bools(rule: Rule) -> Rule:
    """The rule of results of bools, whose sum is "or" and whose product is "and", as in numpy and HLO."""
    return replace(rule, reduction={"sum": "max", "prod": "min"}.get(rule.reduction, rule.reduction))
