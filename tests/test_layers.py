"""Imports point one way, and heavy packages are imported only where they are needed.

LAYERS lists the parts of the code from the bottom up. A part may import itself and parts of lower rows; parts
of one row know nothing of each other. A module belongs to the part with the longest matching name.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS = [
    ["costmodel"],
    ["autoshard.util"],
    ["autoshard.layout", "autoshard.core.tensortype", "autoshard.core.rule", "autoshard.pipeline.schedules"],
    ["autoshard.core.rule_sdy"],
    ["autoshard.core"],
    ["autoshard.ops"],
    ["autoshard.ir"],
    ["autoshard.transform.sums"],
    ["autoshard.transform.recompute", "autoshard.transform.simplify"],
    ["autoshard.transform.layer_places"],
    ["autoshard.transform.layers"],
    ["autoshard.propagate"],
    ["autoshard.redistribute"],
    ["autoshard.plan"],
    ["autoshard.partition"],
    ["autoshard.cost"],
    ["autoshard.optimize"],
    ["autoshard.search", "autoshard.runtime", "autoshard.trace"],
    ["autoshard.engines", "autoshard.search.planned"],
    [
        "autoshard.mindspore.tensor",
        "autoshard.mindspore.layout",
        "autoshard.mindspore.sharding",
        "autoshard.mindspore.instead",
    ],
    ["autoshard.mindspore.common", "autoshard.mindspore.ops"],
    ["autoshard.mindspore.nn"],
    ["autoshard.mindspore.loss_scale", "autoshard.mindspore.mixed_precision", "autoshard.mindspore.mint"],
    ["autoshard.nn", "autoshard.optim"],
    ["autoshard.report.summary", "autoshard.transform"],
    ["autoshard.frontends"],
    ["autoshard.annotate", "autoshard.report.explained_records", "autoshard.report.folding"],
    [
        "autoshard.report.explained",
        "autoshard.report.modules",
        "autoshard.report.totals",
        "autoshard.report.whole",
    ],
    [
        "autoshard.exporters",
        "autoshard.report.brief",
        "autoshard.report.cluster",
        "autoshard.report.explain_plan",
        "autoshard.report.plan",
        "autoshard.report.propagation",
    ],
    [
        "autoshard.report.cluster_picture",
        "autoshard.report.explain_propagation",
        "autoshard.report.notebook",
        "autoshard.view",
    ],
    ["autoshard.mindspore.setting_checks"],
    ["autoshard.mindspore.context", "autoshard.mindspore.algo_parameters"],
    ["autoshard.runtime.stored"],
    ["autoshard.mindspore.communication", "autoshard.engines.session"],
    ["autoshard.api"],
    ["autoshard.pipeline"],
    ["autoshard.mindspore.stages"],
    ["autoshard.mindspore.planning", "autoshard.mindspore.gradient_scale", "autoshard.mindspore.resume"],
    [
        "autoshard.mindspore.dataset",
        "autoshard.mindspore.checkpoint",
        "autoshard.mindspore.gradients",
        "autoshard.mindspore.metrics",
        "autoshard.calibrate",
        "autoshard.truth",
    ],
    ["autoshard.mindspore.callbacks", "autoshard.mindspore.feed"],
    ["autoshard.mindspore.early_stopping"],
    ["autoshard.mindspore.sessions", "autoshard.mindspore.shown"],
    ["autoshard.mindspore.model", "autoshard.mindspore.parallel"],
    ["autoshard.mindspore.one_step", "autoshard.mindspore.embedding_lookup", "autoshard.mindspore.train"],
    ["autoshard.mindspore.amp"],
    ["autoshard.mindspore", "autoshard.report"],
    ["autoshard"],
    ["autoshard.cli"],
    ["autoshard.__main__"],
]
ROW = {part: row for row, parts in enumerate(LAYERS) for part in parts}

# What a part may import from outside, besides numpy and the standard library.
OUTSIDE = {
    "costmodel": {"msgspec", "scipy"},
    "autoshard.core.tensortype": {"ml_dtypes"},
    "autoshard.ir": {"networkx"},
    "autoshard.mindspore.common": {"scipy"},
    "autoshard.ops": {"scipy"},
    "autoshard.pipeline": {"jax", "jaxlib"},
    "autoshard.pipeline.schedules": {"networkx"},
    "autoshard.propagate": {"scipy"},
    "autoshard.search": {"scipy"},
    "autoshard.truth": {"scipy"},
    "autoshard.calibrate": {"torch"},
    "autoshard.frontends": {"flax", "jax", "jaxlib", "torch"},
    "autoshard.engines": {"jax", "jaxlib", "ml_dtypes", "torch"},
    "autoshard.exporters": {"jax", "jaxlib", "networkx", "torch"},
    "autoshard.runtime": {"mpi4py", "psutil"},
    "autoshard.mindspore.checkpoint": {"safetensors"},
    "autoshard.report.brief": {"rich"},
    "autoshard.report.cluster": {"networkx"},
    "autoshard.report.cluster_picture": {"networkx"},
    "autoshard.report.notebook": {"rich"},
    "autoshard.report.plan": {"rich"},
    "autoshard.report.propagation": {"rich"},
    "autoshard.view": {"matplotlib"},
    "autoshard.api": {"networkx"},
    "autoshard.cli": {"networkx", "rich", "typer"},
}
MPI_FILES = {"autoshard.runtime.mpi", "autoshard.runtime.worker"}


def _modules() -> list[str]:
    paths = [path for package in ("autoshard", "costmodel") for path in sorted((ROOT / package).rglob("*.py"))]
    dotted = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return [name.removesuffix(".__init__") for name in dotted]


MODULES = _modules()


def part_of(module: str) -> str | None:
    """The part that a module belongs to: the longest one that its name begins with."""
    words = module.split(".")
    names = (".".join(words[:count]) for count in range(len(words), 0, -1))
    # A new module straight under autoshard must get a row: only the package's own page is "autoshard".
    return next((name for name in names if name in ROW and (name != "autoshard" or module == name)), None)


@cache
def imports(module: str) -> frozenset[str]:
    """Every module that the source of `module` imports when it runs, at its top or inside a function."""
    return frozenset(_imported(_source(module)))


@cache
def _source(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(source.read_text(encoding="utf-8"))


def _imported(tree: ast.AST) -> Iterator[str]:
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        # Names for annotations only: nothing is imported.
        return
    for found in ast.iter_child_nodes(tree):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            assert found.level == 0 and found.module, f"line {found.lineno}: a relative import"
            inside = [f"{found.module}.{alias.name}" for alias in found.names]
            yield from (name if name in MODULES else found.module for name in inside)
        else:
            yield from _imported(found)


def test_imports_point_down():
    assert [wrong for module in MODULES for wrong in pointing_up(module)] == []


def pointing_up(module: str) -> Iterator[str]:
    """What is wrong with the imports of a module, in words."""
    part = part_of(module)
    if part is None:
        yield f"{module} is in no row of LAYERS: add it"
        return
    for other in sorted(name for name in imports(module) if name.split(".")[0] in ("autoshard", "costmodel")):
        target = part_of(other)
        if target is None:
            yield f"{module} imports {other}, which does not exist"
        elif target != part and ROW[target] >= ROW[part]:
            yield f"{module} imports {other}, which does not stand below it"


def test_outside_imports():
    assert [wrong for module in MODULES for wrong in unknown_imports(module)] == []


def unknown_imports(module: str) -> Iterator[str]:
    """What a module imports from outside, and may not, in words."""
    roots = {name.split(".")[0] for name in imports(module)}
    known = {
        "autoshard",
        "costmodel",
        "numpy",
        *sys.stdlib_module_names,
        *OUTSIDE.get(part_of(module) or "", ()),
    }
    if roots - known:
        yield f"{module} imports {sorted(roots - known)}"
    if module.startswith("costmodel") and "autoshard" in roots:
        yield f"{module} knows of autoshard"


def test_no_modules_import_each_other():
    """Counts all imports: at the top, in functions, for type checkers."""
    graph = nx.DiGraph((module, other) for module in MODULES for other in every_import(module) if other != module)
    cycles = {frozenset(part) for part in nx.strongly_connected_components(graph) if len(part) > 1}
    assert cycles == set()


def every_import(module: str) -> set[str]:
    """The modules that the source of `module` names in an import of any kind."""
    found = (node for node in ast.walk(_source(module)) if isinstance(node, ast.ImportFrom | ast.Import))
    return {name for node in found for name in _imported(ast.Module([node], [])) if name in MODULES}


def test_only_the_runtime_imports_mpi():
    users = {module for module in MODULES if any(name.split(".")[0] == "mpi4py" for name in imports(module))}
    assert users and users <= MPI_FILES


def test_every_row_is_used():
    used = {part_of(module) for module in MODULES}
    assert set(ROW) - used == set()


@pytest.mark.parametrize("module", ["autoshard", "autoshard.cli", "autoshard.cli.model_run", "costmodel"])
def test_importing_loads_nothing_heavy(module):
    script = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    loaded = set(answer.stdout.split())
    assert module.split(".")[0] in loaded
    assert not loaded & {"torch", "jax", "mpi4py", "matplotlib", "networkx", "pytest"}
    assert module != "costmodel" or "autoshard" not in loaded
