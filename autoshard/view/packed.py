"""The data of a page, packed: rows of tables as columns, which pack better and are read faster, then gzip and base64.

`unpacked` of `static/base.js` is the other way.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

DIGITS = 9
"""Significant digits of figures in columns: the page shows three."""
TABLES = ("operators", "redistributions", "inputs", "timeline")
MEMORY = "everything"


def packed(data: Any) -> str:
    """Plain data as text that HTML may hold."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(text, 9, mtime=0)).decode("ascii")


def plan_in_columns(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan as `to_json(planned, everything=True)` tells it, its tables as columns, and no value told twice."""
    made = {one["name"] for operator in plan["operators"] for one in operator["results"]}
    found = {**plan, **{name: in_columns(plan[name]) for name in TABLES if _is_table(plan.get(name))}}
    for name in ("types", "layouts"):
        found[name] = {value: item for value, item in plan[name].items() if value not in made}
    memory = {**plan["cost"]["memory"], MEMORY: in_columns(plan["cost"]["memory"][MEMORY])}
    return {**found, "cost": {**plan["cost"], "memory": memory}}


def _is_table(rows: Any) -> bool:
    return isinstance(rows, Sequence) and all(isinstance(one, Mapping) for one in rows)


def in_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows by column: of those that all rows have the values; of others the places of the rows that do, and the values.

    >>> in_columns([{"a": 1, "b": 2}, {"a": 3}])
    {'rows': 2, 'all': {'a': [1, 3]}, 'some': {'b': [[0], [2]]}}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    whole: dict[str, list[Any]] = {}
    some: dict[str, list[list[Any]]] = {}
    for name in names:
        places = [i for i, row in enumerate(rows) if name in row]
        values = [_rounded(rows[i][name]) for i in places]
        if len(places) == len(rows):
            whole[name] = values
        else:
            some[name] = [places, values]
    return {"rows": len(rows), "all": whole, "some": some}


def _rounded(value: Any) -> Any:
    """Figures with fewer digits; all else as it is."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
