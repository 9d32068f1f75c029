"""sdy's text: read and printed as jaxlib's own parser and printer do; errors point at the column."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from autoshard.layout import AxisRef, Mesh
from autoshard.layout.mlir_text import quoted
from autoshard.layout.sdy_text import (
    parse_manual_axes,
    parse_mesh,
    parse_per_value,
    parse_sharding,
    show_mesh,
    show_per_value,
    show_sharding,
)
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.util.errors import MeshError, ParseError
from tests.layout import asked

pytestmark = pytest.mark.jax
CONTEXT = mlir.make_ir_context()
MESH = Mesh(x=12, y=4, z=2)
MESHES = {"mesh": MESH, "other": Mesh(x=3), "lone": Mesh.maximal(3), "none": Mesh.empty()}


def printed(text: str) -> str | None:
    """What jaxlib makes of an attribute, None if it refuses it."""
    with CONTEXT:
        try:
            return str(ir.Attribute.parse(text))
        except ir.MLIRError:
            return None


@given(asked.meshes())
def test_meshes(mesh):
    text = show_mesh(mesh)
    assert printed(f"#sdy.mesh{text}") == f"#sdy.mesh{text}"
    assert parse_mesh(text) is mesh and parse_mesh(f"#sdy.mesh{text}") is mesh


@pytest.mark.parametrize("mesh", [Mesh.empty(), Mesh.maximal(3), Mesh.maximal(0), Mesh([("a", 1)])])
def test_small_meshes(mesh):
    text = show_mesh(mesh)
    assert printed(f"#sdy.mesh{text}") == f"#sdy.mesh{text}"
    assert parse_mesh(text) is mesh


@settings(max_examples=150)
@given(st.data(), asked.meshes(), st.integers(0, 3), st.sampled_from(["mesh", "", "my mesh", "a.b$c", "_1", "9"]))
def test_shardings(data, mesh, rank, name):
    sharding = data.draw(asked.shardings(mesh, rank, name))
    text = show_sharding(sharding)
    assert str(sharding) == text
    assert printed(f"#sdy.sharding{text}") == f"#sdy.sharding{text}"
    assert parse_sharding(text, {name: mesh}) is sharding


@given(st.data())
def test_lists_of_shardings(data):
    meshes = [("mesh", MESH.axes), ("", ()), ("other", ())]
    names = data.draw(st.lists(st.sampled_from([name for name, _ in meshes]), max_size=3))
    listed = []
    for name in names:
        mesh = Mesh(asked.AXES) if name != "other" else Mesh([("y", 4)])
        listed.append(data.draw(asked.shardings(mesh, 2, name)))
    known = {"mesh": Mesh(asked.AXES), "other": Mesh([("y", 4)])}
    text = show_per_value(listed)
    assert printed(f"#sdy.sharding_per_value{text}") == f"#sdy.sharding_per_value{text}"
    for written in (text, f"#sdy.sharding_per_value{text}", text[1:-1]):
        assert parse_per_value(written, known) == tuple(listed)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6))
def test_strings(name):
    text = f"<@{quoted(name)}, []>" if not name.isidentifier() or not name.isascii() else f"<@{name}, []>"
    sharding = Sharding(MESH, (), mesh_name=name)
    assert parse_sharding(text, {name: MESH}) is sharding
    assert printed(f"#sdy.sharding{text}") == f"#sdy.sharding{show_sharding(sharding)}"


LOOSE = [
    '<@mesh,[{"x","y":(1)2,?}p1,{?}],replicated={"z"}>',
    '< @mesh , [ { "x" : ( 1 ) 2 , ? } p0 ] , unreduced = { "z" } , replicated = { "y" } >',
    '<@mesh, [{"x":(0x2)0x3}]> // the rest is a comment',
    '<@mesh, [{"\\78":(01)2}],\n  replicated={"y"}>',
    '<mesh<["b"=2,"a"=3],device_ids=[5,4,3,2,1,0]>,[{"a"}]>',
    '<mesh<["b"=2],device_ids=[0,1]>,[{"b"}]>',
    "<@lone, []>",
    "<@none, [{}, {?}p3]>",
    "<mesh<[], device_ids=[7]>, []>",
    '<@"mesh", []>',
]


@pytest.mark.parametrize("text", LOOSE)
def test_what_mlir_reads_is_read(text):
    assert f"#sdy.sharding{parse_sharding(text, MESHES)}" == printed(f"#sdy.sharding{text}")


WHOLE = [
    '<@mesh, [{"x"}, {"y":(1)2, ?}p1, {?}], replicated={"z"}, unreduced={"y":(2)2}>',
    '<mesh<["b"=2, "a"=3], device_ids=[5, 4, 3, 2, 1, 0]>, [{"a"}p0]>',
    '<@"mesh", [ {"x","z"} ], unreduced={"y":(2)2} > ',
]
EDITS = st.tuples(st.integers(0, 79), st.sampled_from(["", *'<>@mesh[]{}"xyz:()12,?p=- \n\\/09_.$']), st.booleans())


@settings(max_examples=400)
@given(st.sampled_from(WHOLE), st.lists(EDITS, min_size=1, max_size=2))
def test_text_with_slips_is_read_or_refused_as_mlir_does(text, edits):
    for place, letter, insert in edits:
        text = text[:place] + letter + text[place + (not insert) :]
    assume(not text[:1].isspace())  # in MLIR `#sdy.sharding` and its `<` stand together; here is the rest alone
    try:
        expected = f"[#sdy.sharding{parse_sharding(text, MESHES)}]"
    except MeshError:
        return
    except ParseError as error:
        # In MLIR the verifier looks names up, an empty one is a mesh's name, and some marks behind the end are skipped.
        assume('@""' not in text and not any(word in str(error) for word in ("unknown", "whole axis", "nothing more")))
        expected = None
    assert printed(f"[#sdy.sharding{text}\n]") == expected


WRONG = [
    ('<@mesh, [{"x"]>', 13, "expected ',' or '}'"),
    ('<@mesh, [{"x"}', 14, "expected ',' or ']'"),
    ('<@mesh, [{"x",}]>', 14, "an axis name in double quotes"),
    ("<@mesh, [{x}]>", 10, "an axis name in double quotes"),
    ('<@mesh, [{?, "x"}]>', 11, "expected '}'"),
    ('<@mesh, [{"x" ?}]>', 14, "expected ',' or '}'"),
    ('<@mesh, [{"x"}p01]>', 14, "a priority: p0"),
    ("<@mesh, [{}p9223372036854775808]>", 11, "a priority"),
    ("<@mesh, [{}p-1]>", 11, "a priority"),
    ("<@mesh, [{}q1]>", 11, "a priority"),
    ('<@mesh, [{"x":(99999999999999999999)2}]>', 15, "too large"),
    ('<@mesh, [{"x":(a)2}]>', 15, "an integer"),
    ("<@mesh, [{}], >", 14, "expected replicated"),
    ('<@mesh, [{}], replicated={"x"}, replicated={"y"}>', 32, "each at most once"),
    ("<@mesh, [{}], replicated={}>", 26, "an axis name"),
    ('<@mesh, [{}], reduced={"x"}>', 14, "expected replicated"),
    ("<@1, []>", 1, "the name of a mesh behind @"),
    ("<mesh, []>", 5, "expected '<'"),
    ('<[], [{"x"}]>', 1, "expected a mesh"),
    ('<@mesh, [{"\\q"}]>', 11, "unknown escape"),
    ('<@mesh, [{"x"}]> more', 17, "nothing more"),
    ("", 0, "expected '<'"),
    ("<@mesh /*c*/, []>", 7, "expected ','"),
]


@pytest.mark.parametrize(("text", "column", "why"), WRONG)
def test_errors_point_at_the_column(text, column, why):
    with pytest.raises(ParseError) as caught:
        parse_sharding(text, MESHES)
    head, line, mark = str(caught.value).split("\n")
    assert head == "cannot read this sharding" and line == f"    {text}"
    assert mark.index("^") == 4 + column and why in mark
    assert printed(f"#sdy.sharding{text}") is None


UNKNOWN = [
    ("<@mash, []>", 1, "unknown mesh @mash; the meshes are: @mesh, @other, @lone, @none"),
    ('<@mesh, [{"y"}, {"q"}]>', 17, 'unknown axis "q"; the mesh is <["x"=12, "y"=4, "z"=2]>'),
    ('<@other, [{}], replicated={"y"}>', 27, 'unknown axis "y"; the mesh is <["x"=3]>'),
    ('<@mesh, [{"y":(1)4}]>', 10, 'the whole axis of size 4; write "y"'),
    ('<@mesh, [{}], unreduced=most{"y"}>', 24, "terms are reduced by sum, max, min"),
]


@pytest.mark.parametrize(("text", "column", "why"), UNKNOWN)
def test_names_that_do_not_exist(text, column, why):
    for read, wrapped in ((parse_sharding, text), (parse_per_value, f"<[{text}]>")):
        with pytest.raises(ParseError) as caught:
            read(wrapped, MESHES)
        mark = str(caught.value).split("\n")[2]
        assert mark.index("^") == 4 + column + wrapped.index(text) and why in mark


def test_long_and_broken_lines_show_the_place():
    text = "<@mesh,\n [" + "{}, " * 100 + '{"nowhere"}' + ", {}" * 100 + "]>"
    with pytest.raises(ParseError) as caught:
        parse_sharding(text, MESHES)
    _, line, mark = str(caught.value).split("\n")
    assert len(line) <= 104 and line[mark.index("^") :].startswith('"nowhere"')


WRONG_MESHES = [
    '<["a"=2, "a"=4]>',
    '<["a"=0]>',
    '<["a"=-1]>',
    '<["a"=2], device_ids=[0, 0]>',
    '<["a"=2], device_ids=[1, 2]>',
    '<["a"=2], device_ids=[-1, 0]>',
    '<["a"=2], device_ids=[2, 0, 1]>',
    '<["a"=1], device_ids=[3]>',
    "<[], device_ids=[1, 2]>",
    "<[], device_ids=[-1]>",
]


@pytest.mark.parametrize("text", WRONG_MESHES)
def test_meshes_that_cannot_exist(text):
    assert printed(f"#sdy.mesh{text}") is None
    with pytest.raises(MeshError, match="mesh: "):
        parse_mesh(text)


@pytest.mark.parametrize("text", ['<["a"=2], device_ids=[]>', '<"a"=2>', '<["a"]>', '<["a"=2]', "<[a=2]>", '["a"=2]'])
def test_text_that_is_no_mesh(text):
    assert printed(f"#sdy.mesh{text}") is None
    with pytest.raises(ParseError, match="cannot read this mesh"):
        parse_mesh(text)


def test_default_device_order_is_left_out_or_refused():
    text = '<["a"=2, "b"=3], device_ids=[0, 1, 2, 3, 4, 5]>'
    assert f"#sdy.mesh{show_mesh(parse_mesh(text))}" == printed(f"#sdy.mesh{text}")
    with pytest.raises(MeshError, match="device ids 0, 1, 2, 3, 4, 5 are the default order; leave the list out"):
        parse_mesh(text, strict=True)


@pytest.mark.parametrize("names", [(), ("x",), ("y", "x"), ('a "quoted" one', "tab\t", "é")])
def test_manual_axes(names):
    text = f"{{{', '.join(map(quoted, names))}}}"
    assert printed(f"#sdy<manual_axes{text}>") == f"#sdy<manual_axes{text}>"
    assert parse_manual_axes(text) == parse_manual_axes(f"#sdy<manual_axes{text}>") == names


@pytest.mark.parametrize("text", ["{", '{"x",}', "{x}", '{"x"} {"y"}', '#sdy<manual{"x"}>', '#sdy<manual_axes{"x"}'])
def test_text_that_is_no_list_of_manual_axes(text):
    with pytest.raises(ParseError, match="cannot read this list of manual axes"):
        parse_manual_axes(text)


def test_how_terms_are_reduced():
    """Newer than jaxlib 0.10.2, which knows sums only and refuses the text."""
    dims, terms = (DimSharding((AxisRef("x", 1, 12),)),), (AxisRef("y", 2, 2), AxisRef("z", 1, 2))
    for kind, word in (("sum", ""), ("max", "max"), ("min", "min")):
        sharding = Sharding(MESH, dims, (), terms, kind)
        text = f'<@mesh, [{{"x"}}], unreduced={word}{{"y":(2)2, "z"}}>'
        assert show_sharding(sharding) == text
        assert parse_sharding(text, MESHES) is sharding
        assert (printed(f"#sdy.sharding{text}") is None) == (kind != "sum")
    assert Sharding(MESH, dims, reduction="max") is Sharding(MESH, dims)
