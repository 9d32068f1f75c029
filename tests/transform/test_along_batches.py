"""along_batches keeps what a graph computes; samples that are looked up in themselves are split and cut for free."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import autoshard as ash
from autoshard import nn, ops, optim
from autoshard.ir.graph import Graph
from autoshard.ir.verify import verify
from autoshard.partition.program import Collective
from autoshard.pipeline.planning import plan_pipeline
from autoshard.trace import evaluate, trace
from autoshard.transform.along_batches import along_batches

RNG = np.random.default_rng(0)
SAMPLES, PLACES, PARTS, COLUMNS = 6, 5, 4, 3
X = RNG.normal(size=(SAMPLES, PLACES, PARTS, COLUMNS)).astype(np.float32)
PLACE, PART = (RNG.integers(0, size, (SAMPLES, 2)).astype(np.int32) for size in (PLACES, PARTS))


def pairs(*parts):
    """Indices of several components, each of the shape [samples, 2]."""
    shape = (SAMPLES, 2)
    spread = (ops.expand_dims(ops.broadcast_to(part, shape=shape), axis=-1) for part in parts)
    return ops.concat(*spread, axis=-1)


def samples(start: int = 0, delta: int = 1):
    return ops.expand_dims(ops.arange(start=start, limit=start + delta * SAMPLES, delta=delta, count=SAMPLES), axis=-1)


def looked_up(x, index, dims: tuple[int, ...]):
    kept = len(x.shape) - len(dims)
    return ops.gather_slices(
        x,
        index,
        offset_dims=tuple(range(2, 2 + kept)),
        collapsed_slice_dims=tuple(sorted(dims)),
        start_index_map=dims,
        index_vector_dim=2,
        slice_sizes=tuple(1 if dim in dims else size for dim, size in enumerate(x.shape)),
    )


CASES: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "samples, places": (lambda x, i, j: looked_up(x, pairs(samples(), i), (0, 1)), (0,)),
    "places, samples": (lambda x, i, j: looked_up(x, pairs(i, samples()), (1, 0)), (0,)),
    "samples, places, parts": (lambda x, i, j: looked_up(x, pairs(samples(), i, j), (0, 1, 2)), (0,)),
    "places, samples, parts": (lambda x, i, j: looked_up(x, pairs(i, samples(), j), (1, 0, 2)), (0,)),
    "samples behind": (
        lambda x, i, j: looked_up(ops.transpose(x, perm=(1, 0, 2, 3)), pairs(i, samples()), (0, 1)),
        (1,),
    ),
    "from 1 on": (lambda x, i, j: looked_up(x, pairs(ops.minimum(samples(1), np.int32(5)), i), (0, 1)), ()),
    "backwards": (lambda x, i, j: looked_up(x, pairs(samples(SAMPLES - 1, -1), i), (0, 1)), ()),
    "data": (lambda x, i, j: looked_up(x, pairs(j, i), (0, 1)), ()),
    "samples alone": (lambda x, i, j: looked_up(x, pairs(samples()), (0,)), ()),
}


def gathers(graph: Graph) -> list[tuple[int, ...]]:
    """The operand dims that go along, of each look-up."""
    return [node.attrs["operand_batching_dims"] for node in graph.nodes if node.op.name == "GatherSlices"]


@pytest.mark.parametrize("name", CASES)
def test_indices_that_count_samples_are_dims_that_go_along(name: str) -> None:
    function, along = CASES[name]
    graph = trace(function, X, PLACE, PART).graph
    found = along_batches(graph)
    verify(found)
    assert gathers(found) == [along] and (found is graph) == (along == ())
    for got, want in zip(evaluate(found, (X, PLACE, PART)), evaluate(graph, (X, PLACE, PART)), strict=True):
        np.testing.assert_array_equal(got, want)
    assert along_batches(graph, graph.nodes) is graph


@pytest.mark.torch
@pytest.mark.parametrize("mesh", ["2", "3", "4x3"])
def test_a_classifier_that_reads_one_place_of_each_sample(mesh: str) -> None:
    """As transformers' models for classification of sequences do: nothing of a sample goes to another device, and
    micro batches and stages are cut."""
    torch = pytest.importorskip("torch")

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(11, 10)
            self.inner, self.scores = torch.nn.Linear(10, 10), torch.nn.Linear(10, 3)

        def forward(self, words: torch.Tensor, last: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            found = self.scores(torch.tanh(self.inner(self.embedding(words))))
            found = found[torch.arange(words.shape[0]), last]
            return torch.nn.functional.cross_entropy(found, labels)

    torch.manual_seed(0)
    module = Classifier()
    data = torch.randint(0, 11, (12, 7)), torch.randint(-7, 7, (12,)), torch.randint(0, 3, (12,))

    def model():
        return ash.from_torch(module, data, loss="output", optimizer=lambda found: nn.Momentum(found, 0.1, 0.9))

    module(*data).backward()
    wanted = {name: (of - 0.1 * of.grad).detach().numpy() for name, of in module.named_parameters()}
    inputs = tuple(one.numpy() for one in data)
    split, cut = model(), model()
    parts = ash.plan(split, mesh=mesh, search="data_parallel")
    stages = plan_pipeline(cut.cuttable, mesh="pp=2,dp=2", pipeline="pp", micro_batches=3)
    for trained, planned in ((split, parts), (cut, stages)):
        planned.run(*inputs)
        for name, of in trained.parameters_dict().items():
            np.testing.assert_allclose(of.data, wanted[name], rtol=1e-5, atol=1e-6)
    sent = {
        one.step.kind for one in parts.program.instructions if isinstance(one, Collective) and one.step.communicates
    }
    assert sent == {"all_reduce"}


@pytest.mark.jax
@pytest.mark.parametrize("gradients", ["autoshard", "jax"])
def test_losses_of_jax_that_take_the_logit_of_each_label(gradients: str) -> None:
    jax = pytest.importorskip("jax")
    words, labels = X[:, :, 0], np.array([0, 2, 1, 1, 0, 2], np.int32)
    params = {"weight": RNG.normal(size=(COLUMNS, 3)).astype(np.float32)}

    def loss(found, words, labels):
        logs = jax.nn.log_softmax((words @ found["weight"]).sum(1))
        return -logs[jax.numpy.arange(len(labels)), labels].mean()

    wanted = params["weight"] - 0.1 * jax.grad(loss)(params, words, labels)["weight"]
    for mesh in ("2", "3", "6"):
        model = ash.from_jax(
            loss, words, labels, params=params, loss="output", gradients=gradients,
            optimizer=lambda found: optim.Momentum(found, 0.1, 0.0),
        )  # fmt: skip
        planned = ash.plan(model, mesh=mesh, search="data_parallel")
        assert (0,) in gathers(planned.graph)
        planned.run(words, labels)
        (of,) = model.parameters_dict().values()
        np.testing.assert_allclose(of.data, wanted, rtol=1e-5, atol=1e-6)
        # Only the loss and the gradient of the weights are summed.
        assert planned.cost.bytes_per_device <= 2 * (9 + 3) * 4
