"""Every invariant of the RFC's sharding representation, as the text of an error; Shardy's verifier agrees."""

from __future__ import annotations

import pytest
from golden_seeds import check, sections

from autoshard.layout.mesh import Mesh
from autoshard.layout.sdy_show import show_mesh
from autoshard.layout.sdy_text import parse_sharding
from autoshard.layout.verify_sharding import verify_sharding
from autoshard.util.errors import ParseError, ShardingError

FILE = "invariants.txt"
TITLES = [title.removesuffix(": in") for title in sections(FILE) if title.endswith(": in")]
LINES = [line for title in TITLES for line in sections(FILE)[f"{title}: in"].splitlines()]


def read(line: str) -> tuple[Mesh, str, tuple[int, ...]]:
    """Read `mesh: sharding of shape`."""
    mesh, rest = line.split(": ", 1)
    text, shape = rest.rsplit(" of ", 1)
    return Mesh.parse(mesh), text, tuple(map(int, shape.split("x")))


def verdict(line: str, strict: bool = True) -> str:
    """Why the sharding is refused, or that it holds."""
    mesh, text, shape = read(line)
    try:
        verify_sharding(parse_sharding(f"<@mesh, {text}>", {"mesh": mesh}), shape, strict=strict)
    except (ParseError, ShardingError) as error:
        return str(error)
    return "holds"


@pytest.mark.parametrize("title", TITLES)
def test_what_is_said(title: str) -> None:
    lines = sections(FILE)[f"{title}: in"].splitlines()
    check(FILE, f"{title}: out", "".join(f"{verdict(line)}\n" for line in lines))


@pytest.mark.parametrize("title", TITLES)
def test_each_heading_has_both_kinds(title: str) -> None:
    verdicts = [verdict(line) for line in sections(FILE)[f"{title}: in"].splitlines()]
    assert "holds" in verdicts and len(set(verdicts)) > 1


@pytest.mark.jax
@pytest.mark.parametrize("line", LINES)
def test_shardy_refuses_the_same(line: str) -> None:
    """What the RFC asks beyond that (`strict`) its verifier does not look at."""
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir

    mesh, text, shape = read(line)
    module = f"""module {{ sdy.mesh @mesh = {show_mesh(mesh)}
      func.func @main(%x: tensor<{"x".join(map(str, shape))}xf32> {{sdy.sharding = #sdy.sharding<@mesh, {text}>}}) {{
        return }} }}"""
    with jax_mlir.make_ir_context():
        if verdict(line, strict=False) == "holds":
            ir.Module.parse(module)
        else:
            with pytest.raises(ir.MLIRError):
                ir.Module.parse(module)
