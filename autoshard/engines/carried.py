"""The files of this package that exported code carries: their text, their imports, and the names that they define."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

_BOTH = ("grid", "boxes", "per_rank", "rounds", "standalone")
CARRIED = {
    "torch": (*_BOTH, "torch_collectives", "standalone_torch"),
    "jax": (*_BOTH, "xla_collectives", "jax_blocks", "standalone_jax"),
    "jax-stages": (*_BOTH, "xla_collectives", "jax_blocks", "stage_pieces", "standalone_jax_stages"),
}
"""The files that exported modules carry, each before those that need it."""
_HOME = "autoshard.engines."


def imports(module: str) -> list[str]:
    """The imports of all carried files."""
    found: dict[str, None] = {}
    for tree in map(_tree, CARRIED[module]):
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom) and not _is_ours(node):
                found.update((line, None) for line in _single(node))
    plain = sorted(line for line in found if line.startswith("import "))
    return [*plain, *sorted(line for line in found if not line.startswith("import ")), ""]


def defined_in(name: str) -> Iterator[str]:
    """The names that a carried file defines."""
    for node in _tree(name).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (one.id for one in targets if isinstance(one, ast.Name) and one.id != "__all__")


def needed_by(name: str) -> Iterator[str]:
    """The files of ours that a carried file imports."""
    for node in _tree(name).body:
        if isinstance(node, ast.ImportFrom) and _is_ours(node):
            yield str(node.module).removeprefix(_HOME)


def reserved(module: str) -> set[str]:
    """The names that Python, imports and carried files define, which nothing else of exported code may have."""
    found = {*dir(builtins), "PLAN", *(line.rpartition(" ")[2] for line in imports(module))}
    return found.union(*map(defined_in, CARRIED[module]))


def _single(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    start = "" if isinstance(node, ast.Import) else f"from {node.module} "
    for alias in node.names:
        if start != "from __future__ ":
            yield f"{start}import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")


def _is_ours(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autoshard")


def _source(name: str) -> str:
    spec = find_spec(_HOME + name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def _tree(name: str) -> ast.Module:
    return ast.parse(_source(name))


def carried(module: str) -> Iterator[str]:
    """The files' text without their first words and imports."""
    for name in CARRIED[module]:
        tree, lines = _tree(name), _source(name).splitlines()
        first = next(node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr))
        start = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", ()))]) - 1
        yield from ("", "", *_without_all(lines[start:]))


def _without_all(lines: Sequence[str]) -> list[str]:
    kept = [line for line in lines if not line.startswith("__all__")]
    while kept and not kept[-1].strip():
        kept.pop()
    return kept
