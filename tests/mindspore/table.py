"""Writes docs/reference/mindspore.md: MindSpore's names that are offered, their arguments, what holds their values.

python -m tests.mindspore.table
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.mindspore.cases import DOCUMENTED, LINES, RAISES
from tests.mindspore.test_names import DO, ELSEWHERE, PAGES, SIGNATURES, arguments, offered

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "mindspore.md"
HEAD = """# MindSpore's names

`autoshard.mindspore` offers {count} of MindSpore's names. Each has MindSpore 2.10.0's arguments, in its order, with its
defaults (`tests/mindspore/signatures.json` is what MindSpore says of itself), and the values that MindSpore 2.10.0
gives on a CPU: MindSpore evaluated {lines} lines of code (`tests/mindspore/recorded.npz`), and the tests evaluate them
here, outside and inside of a traced model. {documented} more lines, of operators without a CPU kernel, are held to the
documentation's formula, and {raises} are refused by both. **Silent differences: 0.** What is not offered raises an
error that names the nearest name.

Refused, because numpy and MindSpore mean different things by it: `x.max(1)` and `x.min(1)` of a traced tensor (say
`axis=1` for the values), the mean and deviation of whole numbers (MindSpore cuts them off; cast first).

The columns: arguments offered; MindSpore's further ones, which are refused by name; the number of lines whose values
are compared, or the tests that say what the name does. `python -m tests.mindspore.table` writes the table.
"""
COLUMNS = ("| name | arguments and defaults | not taken | values held by |", "|---|---|---|---|")


def shown(theirs: list[list[Any]] | None) -> str:
    """Arguments as MindSpore declares them."""
    if theirs is None:
        return "anything"
    listed = [name if default is None else f"{name}={default}" for name, default, _ in theirs]
    return f"`({', '.join(listed)})`"


def held(name: str, lines: list[str], told: dict[str, str]) -> str:
    """By what the values of a name are held."""
    count = sum(bool(re.search(rf"\b{re.escape(name)}\b", line)) for line in lines)
    if count:
        return "1 line" if count == 1 else f"{count} lines"
    return f"tests/{told[name]}" if name in told else "all lines (`T`)"


def page() -> str:
    """The page as text."""
    lines = [*LINES, *RAISES, *DOCUMENTED]
    told = {name: file for file, names in DO.items() for name in names.split()}
    rows, title = [], ""
    every = sorted(set(offered()))
    for where, name in every:
        if where != title:
            title = where
            rows += ["", f"## {where}", "", *COLUMNS]
        kind = getattr(import_module(where), name)
        if isinstance(kind, type) and issubclass(kind, BaseException) or not hasattr(kind, "__module__"):
            continue
        theirs = SIGNATURES[ELSEWHERE.get(name, PAGES[where])].get(name)
        own = {one.name for one in arguments(kind)}
        taken = None if theirs is None else [one for one in theirs if one[0] in own]
        rest = [] if theirs is None else [one[0] for one in theirs if one[0] not in own]
        rows.append(f"| `{name}` | {shown(taken)} | {', '.join(rest)} | {held(name, lines, told)} |")
    head = HEAD.format(count=len(every), lines=len(LINES), documented=len(DOCUMENTED), raises=len(RAISES))
    return "\n".join([head.rstrip(), *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
