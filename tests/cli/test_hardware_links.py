"""`autoshard hardware show`: links drawn, as a graph in a file, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

from autoshard.report.cluster import drawn, link_graph
from costmodel import preset

CLUSTER = str(Path(__file__).parents[2] / "sample_code" / "cluster.toml")


def test_show_writes_the_links_as_a_graph(cli, tmp_path):
    file = tmp_path / "links.graphml"
    code, out, _ = cli("hardware", "show", CLUSTER, "-o", str(file))
    assert code == 0 and "devices 0 to 31: InfiniBand, 50 GB/s one way" in out
    graph = nx.read_graphml(file)
    assert nx.is_arborescence(graph)
    joined = sorted((of["name"], of["first"]) for _, of in graph.nodes(data=True) if of.get("count") == 8)
    assert joined == [("NVLink", first) for first in (0, 8, 16, 24)]


def test_runs_that_are_cut_and_many_that_are_alike():
    assert drawn(link_graph(preset("h100"), 12)).splitlines()[-1].startswith("`- devices 8 to 11: nvlink")
    assert "|- 6 more like it" in drawn(link_graph(preset("h100"), 64))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((CLUSTER, "-n", "64"), "join 1 to 32 devices, and 64"),
        (("h100",), "join any number of devices; give how many to show, by -n N"),
        (("none.toml",), "there is no cluster file none.toml"),
        ((CLUSTER, "-o", "links.dot"), "their graph is written to FILE.graphml"),
    ],
)
def test_what_cannot_be_shown_is_told(cli, words, told):
    code, _, err = cli("hardware", "show", *words)
    assert code == 2 and told in " ".join(err.split())
