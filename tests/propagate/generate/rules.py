"""Random sharding rules as users write them on operations."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_LETTERS = "ijklmnopqrstuvwxyz"
Shape = tuple[int, ...]


def random_rule(random: Random, operands: Sequence[Shape], results: Sequence[Shape]) -> str:
    """The text of a rule for tensors of these shapes, '' where it would need more factors than there are letters."""
    sizes: list[int] = []
    tensors = [_dims(random, shape, sizes) for shape in (*operands, *results)]
    if len(sizes) > len(_LETTERS):
        return ""
    inputs, outputs = tensors[: len(operands)], tensors[len(operands) :]
    in_results = {factor for dims in outputs for dim in dims for factor in dim}
    kinds = _kinds(random, [factor for factor in range(len(sizes)) if sizes[factor] > 1], in_results)
    listed = ", ".join(f"{_LETTERS[factor]}={size}" for factor, size in enumerate(sizes))
    body = f"({_tensors(inputs)})->({_tensors(outputs)}){f' {{{listed}}}' if sizes else ''}"
    return f"{body}{kinds}{', custom' if random.random() < 0.6 else ''}"


def _dims(random: Random, shape: Shape, sizes: list[int]) -> list[list[int]]:
    """The factors of each dim; factors of other tensors are used again where they fit."""
    used: set[int] = set()
    dims: list[list[int]] = []
    for size in shape:
        cuts = [k for k in range(2, size) if size % k == 0]
        parts = [size]
        if cuts and random.random() < 0.25:
            cut = random.choice(cuts)
            parts = [cut, size // cut]
        dims.append([_factor(random, part, sizes, used) for part in parts])
    return dims


def _factor(random: Random, size: int, sizes: list[int], used: set[int]) -> int:
    known = [factor for factor, of in enumerate(sizes) if of == size and factor not in used]
    if known and random.random() < 0.8:
        chosen = known[0] if random.random() < 0.7 else random.choice(known)
    else:
        chosen = len(sizes)
        sizes.append(size)
    used.add(chosen)
    return chosen


def _kinds(random: Random, factors: list[int], in_results: set[int]) -> str:
    """Special kinds of some factors; each has one at most, besides being blocked."""
    found: dict[str, list[int]] = {"reduction": [], "need_replication": [], "permutation": []}
    for factor in factors:
        if random.random() < 0.3:
            kind = random.choice(("need_replication", "permutation", "reduction"))
            if kind != "reduction" or factor not in in_results:
                found[kind].append(factor)
    found["blocked_propagation"] = [factor for factor in factors if random.random() < 0.1]
    return "".join(
        f" {kind}={{{', '.join(_LETTERS[factor] for factor in listed)}}}" for kind, listed in found.items() if listed
    )


def _tensors(tensors: list[list[list[int]]]) -> str:
    shown = [", ".join("".join(_LETTERS[factor] for factor in dim) for dim in dims) for dims in tensors]
    return ", ".join(f"[{dims}]" for dims in shown)
