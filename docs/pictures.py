"""The pictures of docs/explanation, made by the code that they explain: `python docs/pictures.py` writes them anew.

`tests/test_docs_pictures.py` holds that they are what the code draws today.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np

import autoshard as ash
from autoshard import Layout, Mesh
from autoshard.core.rule_picture import rule_svg
from autoshard.layout import layout_svg, mesh_svg
from autoshard.pipeline.compare import Comparison
from autoshard.pipeline.schedules import make_schedule, simulate
from autoshard.pipeline.schedules.picture import schedule_svg
from autoshard.report.cluster_picture import cluster_svg
from autoshard.trace.function import trace
from costmodel import preset

FOLDER = Path(__file__).parent / "explanation" / "pictures"
MESH = Mesh.parse("dp=2 tp=4")


def of_layout(text: str, shape: tuple[int, ...] = (64, 48)) -> str:
    return layout_svg(shape, Layout.parse(text, MESH))


def of_rule(title: str) -> str:
    shapes = {"MatMul": ((12, 6), (6, 24)), "Softmax": ((12, 24),)}[title]
    function = {"MatMul": ash.ops.matmul, "Softmax": ash.ops.softmax}[title]
    graph = trace(function, *(np.ones(shape, np.float32) for shape in shapes)).graph
    return rule_svg(graph.nodes[0].rule, f"{title}: {graph.nodes[0].rule}")


DRAWN: dict[str, Callable[[], str]] = {
    "mesh": partial(mesh_svg, MESH),
    "both": partial(of_layout, "dp, tp"),
    "joined": partial(of_layout, "dp.tp, -"),
    "part_of_an_axis": partial(of_layout, "tp:(1)2, tp:(2)2"),
    "partial": partial(of_layout, "dp, - +tp"),
    "uneven": partial(of_layout, "-, tp", (6, 10)),
    "matmul": partial(of_rule, "MatMul"),
    "softmax": partial(of_rule, "Softmax"),
    "cluster": lambda: cluster_svg(preset("h100"), 16),
    "schedule": lambda: schedule_svg(simulate(make_schedule("1f1b", ranks=4, micro_batches=8))),
}


@cache
def trained() -> ash.Planned:
    """A step of training of two blocks on 2 x 4 H100."""
    from autoshard import nn, optim
    from autoshard.transform.train import train_step

    class Model(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.CellList([nn.TransformerBlock(512, 8, 2048, causal=True) for _ in range(2)])

        def construct(self, x):
            for block in self.blocks:
                x = block(x)
            return ash.ops.reduce_mean(ash.ops.square(x))

    net, x = Model(), np.ones((16, 128, 512), np.float32)
    return ash.plan(train_step(net, optim.Adam(net.trainable_params(), 1e-3), x), (), MESH, hardware="h100")


def contenders() -> Comparison:
    return ash.compare(trained().traced, (), [MESH], CONTENDERS, hardware="h100")


CONTENDERS = ("optimal", "sharding_propagation", "megatron", "megatron_sp", "zero1", "zero3", "batch", "factor")


def plots(folder: Path) -> None:
    """What matplotlib draws: its text may change from release to release, so only the words are held."""
    trained().plot("timeline", folder / "timeline.svg")
    trained().plot("memory", folder / "memory.svg")
    contenders().plot(folder / "contenders.svg")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
    plots(FOLDER)


if __name__ == "__main__":
    main()
