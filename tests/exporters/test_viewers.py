"""Plans written for viewers and simulators, each read back by the reader of its own tool and held against the plan."""

from __future__ import annotations

import json
import pickle
import sys
import types
from collections import Counter
from functools import cache
from importlib import util
from io import BytesIO

import networkx as nx
import pytest
from typer.testing import CliRunner

import autoshard
from autoshard import nn, ops
from autoshard.api import Planned, plan
from autoshard.cli.commands import app
from autoshard.exporters.chakra import COLLECTIVE, RECEIVE, SEND
from autoshard.exporters.export import FILES, PLAN_FORMS
from autoshard.exporters.memory_viz import memory_snapshot
from autoshard.exporters.model_explorer import model_explorer
from autoshard.exporters.plan_networkx import plan_networkx
from autoshard.partition.program import Collective, Compute, walk
from autoshard.redistribute.messages import POINT_TO_POINT, received
from autoshard.transform import train_step
from autoshard.util.errors import PlanError
from tests.search.plans import FFN, array


@cache
def training(search: str = "megatron") -> Planned:
    net = FFN(((2, 1), (1, 4)), sizes=(12, 24, 8))
    step = train_step(
        nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01), array(24, 12), array(24, 8)
    )
    return plan(step, mesh="dp=2 tp=4", search=search)


def odd(x, w):
    """Names, a halo, a permute and a loop."""
    y = ops.concat((x, w), axis=0)
    y = ops.while_loop(lambda z: z.sum() < 50.0, lambda z: ops.relu(z) + z, y)
    return ops.transpose(y, (1, 0))


@cache
def strange() -> Planned:
    from autoshard import Layout, Mesh

    mesh = Mesh.parse("a=2 b=3")
    lying = (Layout.parse("b, a", mesh), Layout.parse("a.b, -", mesh))
    inputs = (array(7, 6), array(11, 6))
    return plan(odd, inputs, mesh, search="communication", dataset_strategy=lying)


# -- memory_viz


def test_torch_reads_the_memory_snapshot():
    viz = pytest.importorskip("torch.cuda._memory_viz")
    planned = training()
    snapshot = pickle.loads(memory_snapshot(planned))
    use = planned.cost.memory
    assert use is not None
    lying = peak = 0
    for one in snapshot["device_traces"][0]:
        lying += {"alloc": 1, "free_completed": -1}.get(one["action"], 0) * one["size"]
        peak = max(peak, lying)
    assert peak == planned.cost.peak_memory_bytes and lying == int(use.timeline[-1])
    told = viz.trace(snapshot)
    assert told.startswith("Device 0") and told.count(" = ") == sum(one.nbytes > 0 for one in use.held) + 1
    flames = viz.memory(snapshot, format_flamegraph=lambda text: text).splitlines()
    staying = [line for line in flames if "active_allocated" in line]
    assert sum(int(line.rpartition(" ")[2]) for line in staying) == lying
    assert any("dense1.weight" in line and "parameter" in line for line in staying)
    assert "segments: 1" in viz.segsum(snapshot)  # it adds up, or this raises
    assert len(viz.trace_plot(snapshot)) > 1000


# -- networkx, GraphML, DOT


def edges(view: nx.MultiDiGraph) -> list[str]:
    """The edges with what they say, but for the number that GraphML gives each of several."""
    return sorted(
        str((one, other, sorted((key, value) for key, value in data.items() if key != "id")))
        for one, other, data in view.edges(data=True)
    )


@pytest.mark.parametrize("made", [training, strange])
def test_graphs_come_back_as_they_were(made):
    planned = made()
    view = plan_networkx(planned)
    back = nx.parse_graphml(planned.export("graphml"))
    assert dict(back.nodes(data=True)) == dict(view.nodes(data=True))
    assert edges(back) == edges(view)
    pydot = pytest.importorskip("pydot")
    (drawn,) = pydot.graph_from_dot_data(planned.export("dot"))
    again = nx.nx_pydot.from_pydot(drawn)
    assert {name.strip('"') for name in again} == set(view) and again.number_of_edges() == view.number_of_edges()


def test_graphs_say_what_the_plan_says():
    planned = training()
    view = planned.to_networkx()
    moved = sum(data["moved_bytes"] for data in {
        (data["value"], data["layout"]): data for _, _, data in view.edges(data=True) if "by" in data
    }.values())  # fmt: skip
    assert moved == pytest.approx(planned.cost.bytes_per_device)
    seconds = sum(data["seconds"] * data.get("times", 1) for _, data in view.nodes(data=True))
    assert seconds == pytest.approx(planned.cost.compute_seconds)
    assert view.nodes["dense1.matmul"]["module"] == "dense1"
    for value, layout in planned.plan.layouts.items():
        if value.name in view:
            assert str(layout) in view.nodes[value.name]["layout"]


# -- Model Explorer


def builder():
    """Model Explorer's own dataclasses, without the app, which needs an adapter of 128 MB."""
    found = util.find_spec("model_explorer")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs Model Explorer: pip install --no-deps ai-edge-model-explorer")
    name, path = "model_explorer_only", found.submodule_search_locations[0]
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package
    from importlib import import_module

    return import_module(f"{name}.graph_builder"), import_module(f"{name}.node_data_builder")


def as_dataclass(kind, data):
    """The data as their dataclasses hold them; a field that they have not is an error."""
    import dataclasses
    import typing

    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        hints = typing.get_type_hints(kind)
        return kind(**{name: as_dataclass(hints[name], value) for name, value in data.items()})
    if isinstance(data, list):
        (inner,) = next(
            typing.get_args(one) for one in (kind, *typing.get_args(kind)) if typing.get_origin(one) is list
        )
        return [as_dataclass(inner, one) for one in data]
    if isinstance(data, dict) and typing.get_origin(kind) is dict:
        return {name: as_dataclass(typing.get_args(kind)[1], value) for name, value in data.items()}
    inner = [one for one in typing.get_args(kind) if dataclasses.is_dataclass(one)]
    return as_dataclass(inner[0], data) if inner and isinstance(data, dict) else data


def test_model_explorer_takes_one_plan_and_two():
    graphs, colors = builder()
    planned, other = training(), training("data_parallel")
    one = json.loads(planned.export("model_explorer"))
    both = json.loads(json.dumps(model_explorer(planned, other)))
    assert [len(data["graphs"]) for data in (one, both)] == [1, 2]
    for data in (one, both):
        found = as_dataclass(graphs.GraphCollection, data)
        assert len({graph.id for graph in found.graphs}) == len(found.graphs)
        for graph, of in zip(found.graphs, (planned, other), strict=False):
            ids = {node.id for node in graph.nodes}
            assert len(ids) == len(graph.nodes) == len(of.graph.inputs) + len(of.graph.nodes) + len(of.graph.outputs)
            assert {edge.sourceNodeId for node in graph.nodes for edge in node.incomingEdges} <= ids
            sides = graph.tasksData.edgeOverlaysDataListLeftPane, graph.tasksData.edgeOverlaysDataListRightPane
            drawn = [edge for side in sides for data in side for overlay in data.overlays for edge in overlay.edges]
            assert {end for edge in drawn for end in (edge.sourceNodeId, edge.targetNodeId)} <= ids
            assert bool(drawn) == bool(of.cost.bytes_per_device)
    assert both["graphs"][1]["tasksData"].keys() == {"edgeOverlaysDataListRightPane"}
    ((name, columns),) = json.loads(planned.export("node_data")).items()
    assert name == one["graphs"][0]["id"]
    shown = [as_dataclass(colors.GraphNodeData, column) for column in columns]
    assert sum(result.value for result in shown[0].results.values()) == pytest.approx(
        1e6 * planned.cost.compute_seconds
    )


# -- Chakra


def chakra_reader():
    try:
        from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node
        from chakra.src.third_party.utils.protolib import decodeMessage
    except ImportError as error:
        pytest.skip(f"needs Chakra's reader ({error}): pip install --no-deps mlc-chakra; pip install protobuf")
    return GlobalMetadata, Node, decodeMessage


@pytest.mark.parametrize("made", [training, strange])
def test_chakra_reads_every_rank(tmp_path, made):
    metadata, kind, decode = chakra_reader()
    planned = made()
    world, program = planned.plan.mesh.devices, planned.program
    files = PLAN_FORMS.save(planned, "chakra", tmp_path / "step")
    assert [path.name for path in files] == [*(f"step.{rank}.et" for rank in range(world)), "step.json"]
    groups = json.loads(files[-1].read_text())
    traces = []
    for path in files[:-1]:
        stream, head, nodes = BytesIO(path.read_bytes()), metadata(), []
        assert decode(stream, head) and head.version == "0.0.4"
        while decode(stream, node := kind()):
            nodes.append(node)
        traces.append(nodes)
    sent, come = Counter(), Counter()
    for rank, nodes in enumerate(traces):
        assert [node.id for node in nodes] == list(range(1, len(nodes) + 1))
        for node in nodes:
            assert all(one < node.id for one in node.data_deps)
            told = {one.name: getattr(one, one.WhichOneof("value")) for one in node.attr}
            if node.type == COLLECTIVE:
                assert rank in groups[told["pg_name"]] and told["comm_size"] > 0
            elif node.type in (SEND, RECEIVE):
                ends = told["comm_src"], told["comm_dst"], told["comm_tag"], told["comm_size"]
                (sent if node.type == SEND else come)[ends] += 1
                assert rank == ends[0 if node.type == SEND else 1]
    assert sent == come and (sent if made is strange else not sent)
    if made is training:
        computing = [one for one in program.instructions if isinstance(one, Compute)]
        assert [sum(node.type == 4 for node in nodes) for nodes in traces] == [len(computing)] * world
        names = {node.name for node in traces[0]}
        assert any(name.startswith("all_reduce ") for name in names) and "dense1.matmul" in names


def test_messages_are_what_a_step_moves():
    found = [one for one in walk(strange().program.instructions) if isinstance(one, Collective)]
    steps = [one for one in found if one.step.kind in POINT_TO_POINT]
    assert steps
    for one in steps:
        rows = [received(one.step, one.of.shape, rank) for rank in range(6)]
        most = max(sum(row.values()) for row in rows)
        assert one.step.elements_moved(one.of.shape) <= most * (1 + 1e-9) or one.step.kind == "halo"
        assert all(rank not in row for rank, row in enumerate(rows))


# -- the command


def test_files_need_a_name(tmp_path):
    for form in FILES:
        with pytest.raises(PlanError, match=f"{form} is .*-o FILE"):
            PLAN_FORMS.text(training(), form)


def test_the_command_writes_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\nfrom autoshard import ops\n\n\ndef model():\n"
        "    return (lambda x, w: ops.relu(ops.matmul(x, w))), (np.ones((24, 12)), np.ones((12, 8)))\n"
    )
    target = ["export", f"{script}:model", "--mesh", "dp=2,tp=2"]
    done = CliRunner().invoke(app, [*target, "--to", "chakra", "-o", str(tmp_path / "step")])
    assert done.exit_code == 0 and done.output.split() == [
        *(str(tmp_path / f"step.{rank}.et") for rank in range(4)),
        str(tmp_path / "step.json"),
    ]
    both = tmp_path / "both.json"
    done = CliRunner().invoke(app, [*target, "--to", "model_explorer", "--against", "data_parallel", "-o", str(both)])
    assert done.exit_code == 0, done.output
    assert len(json.loads(both.read_text())["graphs"]) == 2
    with pytest.raises(autoshard.errors.AutoshardError, match="goes with --to model_explorer"):
        CliRunner().invoke(app, [*target, "--to", "dot", "--against", "optimal"], catch_exceptions=False)
