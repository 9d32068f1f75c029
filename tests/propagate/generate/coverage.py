"""Which operations random modules hold, and how often: `python -m tests.propagate.generate.coverage`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from random import Random

from tests.propagate.generate.module import ALONE, FEATURES, random_module

_OPERATION = re.compile(r"\b((?:stablehlo|chlo|sdy|func)\.[\w-]+)\"?[ <(]")
_TARGET = re.compile(r'call_target_name = "([\w.]+)"')
_NO_OPERATION = ("sdy.sharding", "sdy.sharding_rule", "sdy.sharding_per_value", "func.func", "stablehlo.channel_handle")


def drawn(count: int) -> list[str]:
    """Random modules of all features."""
    return [random_module(Random(i), frozenset(Random(-i).sample((*FEATURES, *ALONE), 9))) for i in range(count)]


def counts(texts: Iterable[str]) -> Counter[str]:
    """How often each operation occurs, targets of custom calls apart, as `@target`."""
    found: Counter[str] = Counter()
    for text in texts:
        found.update(name for name in _OPERATION.findall(text) if name not in _NO_OPERATION)
        found.update(f"@{target}" for target in _TARGET.findall(text))
    return found


if __name__ == "__main__":
    for name, count in counts(drawn(1000)).most_common():
        print(f"{count:7} {name}")
