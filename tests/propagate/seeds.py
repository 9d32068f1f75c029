"""Golden modules of the seed documents' worked examples: a file holds a module and what each pass makes of it.

The section `module` is what goes in, the others are what has to come out: `rules`, the name of a pass, or `after pN`,
the state after that round of user priority. Modules are compared as MLIR prints them here, so that no golden file
depends on the version of its printer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from against_shardy import work_of
from golden_seeds import FOLDER, golden, sections
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from autoshard.api.propagate import PASSES, propagate
from autoshard.core.rule_sdy import show_sdy
from autoshard.exporters.sdy import to_module
from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.propagate.edges import add_edges
from autoshard.propagate.mutable_ir import from_graph
from autoshard.propagate.priorities import release, start_with_priority_0
from autoshard.propagate.run import run_op_priority
from tests.propagate.shardy import PIPELINES, shardy

NAMES = sorted(path.stem for path in FOLDER.glob("*.mlir"))
_AFTER, _RULE = "after p", "sdy.sharding_rule"


def results(name: str) -> list[str]:
    """The titles of what has to come out."""
    return [title for title in sections(f"{name}.mlir") if title not in ("", "module")]


def module(name: str) -> str:
    """What goes in."""
    return sections(f"{name}.mlir")["module"]


def check(name: str, title: str) -> None:
    """What we make of the module must be what the file says."""
    made = ours(module(name), title)
    want = golden(f"{name}.mlir", title, made)
    assert made == (want if title == "rules" else printed(want)), f"{name}.mlir, {title!r} differs"


def printed(text: str) -> str:
    """A module as this version of MLIR prints it."""
    with jax_mlir.make_ir_context():
        return str(ir.Module.parse(text))


# -- what we make of a module


def ours(text: str, title: str) -> str:
    """The text of a section.

    Raises:
        ValueError: no such kind of section.
    """
    if title == "rules":
        return "".join(f"// {line}\n" for line in our_rules(text))
    if title.startswith(_AFTER):
        return _rounds(text)[int(title.removeprefix(_AFTER))]
    if title not in PASSES:
        raise ValueError(f"section {title!r} is neither 'rules', '{_AFTER}N' nor one of {', '.join(PASSES)}")
    return propagate(text, which=title).to_mlir()


def our_rules(text: str) -> list[str]:
    """A line for each kind of operation and rule, in order: `Reshape ([i, j, k])->([ij, k]) {i=2, j=4, k=32}`."""
    nodes = (op.origin for op in work_of(text).op.walk())
    rules = (f"{node.op.name} {show_sdy(node.rule)}" for node in nodes if node is not None and node.op.has_rule)
    return list(dict.fromkeys(rules))


def _rounds(text: str) -> dict[int, str]:
    """The module after each round of user priority."""
    imported = read_module(parse_module(text))
    mutable = from_graph(imported.graph, imported.asked, imported.order)
    add_edges(mutable)
    waiting = start_with_priority_0(mutable)
    after = {}
    for priority in (0, *waiting):
        release(waiting.get(priority, ()), priority)
        run_op_priority(mutable)
        after[priority] = str(to_module(mutable, imported))
    return after


# -- what Shardy makes of it


def shardys(text: str, title: str) -> str:
    """The same section by Shardy's passes in jaxlib, in a process of their own."""
    if title == "rules":
        return "".join(f"// {line}\n" for line in dict.fromkeys(_shardys_rules(text)))
    if title.startswith(_AFTER):
        return _shardys_round(text, int(title.removeprefix(_AFTER)))
    return shardy(text, [*PIPELINES[title], "func.func(sdy-drop-sharding-rules)"])


def _shardys_rules(text: str) -> Iterator[str]:
    nodes = [op.origin for op in work_of(text).op.walk() if op.origin is not None]
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(shardy(text, ["func.func(sdy-populate-op-sharding-rules)"]))
        blocks = [block for op in module.body.operations for region in op.regions for block in region.blocks]
        ops = [op for block in blocks for op in block.operations if op.operation.name != "func.return"]
        for node, op in zip(nodes, ops, strict=True):
            if _RULE in op.attributes:
                yield f"{node.op.name} {str(op.attributes[_RULE]).removeprefix('#sdy.op_sharding_rule<')[:-1]}"


def _shardys_round(text: str, priority: int) -> str:
    """Shardy keeps the module after each round but the last; after that one it is done."""
    with tempfile.TemporaryDirectory() as folder:
        last = shardy(text, [f"sdy-user-priority-propagate{{module-dump-directory={folder}}}"])
        kept = {path.stem.rpartition("_")[2]: path.read_text(encoding="utf-8") for path in Path(folder).iterdir()}
    return shardy(kept.get(str(priority), last), ["func.func(sdy-drop-sharding-rules)"])
