"""Size and shape of the code at any commit: lines, files, long functions, names, import cycles. Prints Markdown.

    python benchmarks/house.py
    python benchmarks/house.py --at v0.1 --at HEAD

The figures come from the text of the files of a commit (without --at, of the checkout); only the numbers of public
names are asked of the packages themselves.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

import networkx as nx

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("autoshard", "costmodel")
LONG_FUNCTION, LARGE_FILE = 30, 500
"""Lines from which a function counts as long, and a file as large."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Tree:
    """The Python files of a commit, by path; of the checkout if there is no commit."""

    def __init__(self, revision: str | None) -> None:
        self.revision = revision
        self.texts = _archived(revision) if revision else _checked_out()
        self.source = {path: text for path, text in self.texts.items() if path.split("/")[0] in SOURCES}

    def under(self, folder: str) -> dict[str, str]:
        return {path: text for path, text in self.texts.items() if path.startswith(f"{folder}/")}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {path: ast.parse(text) for path, text in self.source.items()}

    @cached_property
    def modules(self) -> dict[str, str]:
        """Dotted name -> path."""
        return {module_of(path): path for path in self.source}

    @cached_property
    def imports(self) -> nx.DiGraph:
        """Who imports whom, wherever the statement stands: at the top, in a function, for type checkers alone."""
        graph = nx.DiGraph()
        graph.add_nodes_from(self.modules)
        for module, path in self.modules.items():
            graph.add_edges_from((module, other) for other in set(self._imported(module, path)) if other != module)
        return graph

    def _imported(self, module: str, path: str) -> Iterator[str]:
        for found in ast.walk(self.trees[path]):
            if isinstance(found, ast.Import):
                yield from (alias.name for alias in found.names if alias.name in self.modules)
            elif isinstance(found, ast.ImportFrom) and found.module and not found.level:
                inside = [f"{found.module}.{alias.name}" for alias in found.names]
                named = [name if name in self.modules else found.module for name in inside]
                yield from (name for name in named if name in self.modules)


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def _archived(revision: str) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", revision))) as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers() if one.name.endswith(".py")}
        return {path: file.read().decode("utf-8") for path, file in sorted(files.items()) if file is not None}


def _checked_out() -> dict[str, str]:
    if not (ROOT / ".git").exists():  # what was unpacked from an archive
        paths = sorted(
            str(one.relative_to(ROOT)) for folder in (*SOURCES, "tests") for one in (ROOT / folder).rglob("*.py")
        )
    else:
        paths = sorted(set(_git("ls-files", "-co", "--exclude-standard", "*.py").decode("utf-8").splitlines()))
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths if (ROOT / path).exists()}


def module_of(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")


def lines(texts: Mapping[str, str]) -> int:
    return sum(len(text.splitlines()) for text in texts.values())


def code_lines(tree: Tree) -> int:
    """Lines that hold a part of a statement: no blank lines, no comments, no docstrings."""
    return sum(len(_code(tree.trees[path], text)) for path, text in tree.source.items())


def _code(module: ast.Module, text: str) -> set[int]:
    told = {line for node in _texts(module) for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    written = {i for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.strip().startswith("#")}
    return written - told


def _texts(module: ast.Module) -> Iterator[ast.Expr]:
    """Statements that are a text and nothing else: docstrings, and those below constants."""
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def long_functions(tree: Tree) -> int:
    found = (node for module in tree.trees.values() for node in ast.walk(module) if isinstance(node, FUNCTIONS))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 > LONG_FUNCTION for node in found)


def classes_defined_twice(tree: Tree) -> list[str]:
    """Names of classes at the top of more than one module."""
    tops = (node for module in tree.trees.values() for node in module.body if isinstance(node, ast.ClassDef))
    counts = Counter(node.name for node in tops)
    return sorted(name for name, count in counts.items() if count > 1)


def cycles(graph: nx.DiGraph) -> int:
    """How many modules stand in cycles of imports, of all kinds."""
    return sum(len(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)


def package_of(module: str) -> str:
    """The room straight below `autoshard`; costmodel is one room."""
    return ".".join(module.split(".")[: 2 if module.startswith("autoshard") else 1])


def mutual_pairs(tree: Tree) -> list[str]:
    """Packages straight below `autoshard` that import each other, wherever the statements stand."""
    between = {(package_of(one), package_of(other)) for one, other in tree.imports.edges}
    between = {(one, other) for one, other in between if "autoshard" not in (one, other)}
    return sorted(f"{one} - {other}" for one, other in between if one < other and (other, one) in between)


def public_names(tree: Tree, package: str) -> int:
    """How many names `__all__` of a package has, -1 where it cannot be imported."""
    script = f"import {package} as package; print(len(package.__all__))"
    with tempfile.TemporaryDirectory() as folder:
        for path, text in tree.source.items():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(text, encoding="utf-8")
        command = [sys.executable, "-W", "ignore", "-c", script]
        printed = subprocess.run(command, cwd=folder, env={"PYTHONPATH": folder}, capture_output=True, text=True).stdout
    return int(printed or -1)


def largest(tree: Tree) -> str:
    path = max(tree.source, key=lambda path: len(tree.source[path].splitlines()))
    return f"{len(tree.source[path].splitlines())} ({path})"


def large_files(tree: Tree) -> int:
    return sum(len(text.splitlines()) > LARGE_FILE for text in tree.source.values())


FIGURES: Mapping[str, Callable[[Tree], object]] = {
    "source lines": lambda tree: lines(tree.source),
    "code lines": code_lines,
    "files": lambda tree: len(tree.source),
    "files at the root of autoshard": lambda tree: sum(path.count("/") == 1 for path in tree.under("autoshard")),
    "search/: lines": lambda tree: lines(tree.under("autoshard/search")),
    "search/: files": lambda tree: len(tree.under("autoshard/search")),
    "ops/: lines": lambda tree: lines(tree.under("autoshard/ops")),
    "ops/: files": lambda tree: len(tree.under("autoshard/ops")),
    "largest file": largest,
    f"files over {LARGE_FILE} lines": large_files,
    f"functions over {LONG_FUNCTION} lines": long_functions,
    "class names defined twice": lambda tree: len(classes_defined_twice(tree)),
    "public names of autoshard": lambda tree: public_names(tree, "autoshard"),
    "public names of autoshard.ops": lambda tree: public_names(tree, "autoshard.ops"),
    "modules in import cycles, all kinds": lambda tree: cycles(tree.imports),
    "packages that import each other": lambda tree: len(mutual_pairs(tree)),
    "test lines": lambda tree: lines(tree.under("tests")),
}


def table(revisions: list[str | None]) -> dict[str, list]:
    trees = [Tree(revision) for revision in revisions]
    return {name: [figure(tree) for tree in trees] for name, figure in FIGURES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", metavar="REV", action="append", help="a commit; several make a column each")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--names", action="store_true", help="list what is defined twice, and what imports each other")
    given = parser.parse_args()
    revisions: list[str | None] = given.at or [None]
    found = table(revisions)
    if given.json:
        print(json.dumps({"at": revisions, **found}, indent=1))
        return
    print(f"| | {' | '.join(revision or 'checkout' for revision in revisions)} |")
    print(f"|---|{'---|' * len(revisions)}")
    for name, values in found.items():
        print(f"| {name} | {' | '.join(f'{value:,}' if isinstance(value, int) else str(value) for value in values)} |")
    for tree in [Tree(revisions[-1])] if given.names else []:
        print("\ndefined twice:", ", ".join(classes_defined_twice(tree)))
        print("import each other:", ", ".join(mutual_pairs(tree)))
        for part in nx.strongly_connected_components(tree.imports):
            if len(part) > 1:
                print("cycle:", ", ".join(sorted(part)))


if __name__ == "__main__":
    main()
