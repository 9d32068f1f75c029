"""A plan as notebooks show it: the summary and what costs most, as text that a terminal would show."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console

from autoshard.report.brief import RowFilter, print_brief
from autoshard.report.plan import print_summary

if TYPE_CHECKING:
    from autoshard.search.planned import PlannedData

WIDTH = 120
"""Columns."""
_FORM = '<pre style="white-space: pre; overflow-x: auto; line-height: 1.3; font-family: monospace">{code}</pre>'


def plan_html(planned: PlannedData) -> str:
    """The summary and the tables of what costs most, without scripts."""
    out = Console(record=True, file=StringIO(), width=WIDTH, highlight=False, markup=False)
    print_summary(planned, out)
    print_brief(planned, out, RowFilter())
    return out.export_html(code_format=_FORM, inline_styles=True)
