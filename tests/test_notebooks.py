"""What notebooks show of plans, layouts, graphs and comparisons: well-formed, without scripts, whatever the names."""

from __future__ import annotations

from html.parser import HTMLParser

from autoshard.layout import Layout, Mesh
from autoshard.pipeline.compare import compare
from tests.view.models import BITING, biting

MOST = 40_000


class Reader(HTMLParser):
    """Collects the text; what is opened must be closed, and no element may do anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        assert tag in ("p", "table", "thead", "tbody", "tr", "th", "td", "pre", "span"), tag
        assert all(name == "style" for name, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + "\n"


def read(value) -> str:
    found = value._repr_html_()
    assert len(found) < MOST
    reader = Reader()
    reader.feed(found)
    reader.close()
    assert not reader.open
    return reader.text


def test_plans_layouts_graphs_and_comparisons():
    planned = biting()
    told = read(planned)
    assert "a step takes" in told and "operators" in told
    graph = read(planned.graph)
    assert all(name in graph for name in BITING) and "MatMul(" in graph and "models.py:" in graph
    layout = read(Layout.parse("dp, tp +a", Mesh.parse("dp=2 a=2 tp=3")))
    assert "[dp, tp +a] on mesh dp=2 a=2 tp=3: dim 0 in 2, dim 1 in 3" in layout
    assert layout.split()[-3:] == ["11", "1", "2"]  # the last rank has the last parts
    assert "and 900 more" in read(Layout.parse("a", Mesh.parse("a=1000")))
    found = compare(planned.traced, (), ("8",), ("data_parallel", "megatron_sp", "bfs"))
    assert isinstance(found, tuple) and len(found) == 3
    table = read(found)
    assert "data_parallel" in table and "peak memory" in table
    changes = found[0].planned.plan.diff(found[2].planned.plan)
    assert "differences" in read(changes)
