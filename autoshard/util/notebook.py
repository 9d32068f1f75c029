"""What notebooks show of a value: small tables of text, without scripts; names are never taken for HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 100
"""Rows of a table; how many more there are is said below it."""


def table(title: str, heads: Sequence[str], rows: Sequence[Iterable[object]], count: int | None = None) -> str:
    """A table under its title.

    Args:
        count: how many rows there are, if not all are given.

    >>> table("a < b", ["name"], [["x"]])
    '<p>a &lt; b</p><table><thead><tr><th>name</th></tr></thead><tbody><tr><td>x</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(one))}</td>' for one in row)}</tr>" for row in rows[:MOST_ROWS])
    left = (len(rows) if count is None else count) - MOST_ROWS
    more = f"<p>and {left} more</p>" if left > 0 else ""
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
