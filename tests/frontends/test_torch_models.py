"""Modules, programs and files: equal to torch unsplit, planned and split, trained; names, sources, half precision."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autoshard as ash
from autoshard import nn, optim
from autoshard.util.errors import RuntimeSetupError

pytestmark = pytest.mark.torch
SAMPLES = Path(ash.__file__).parents[1] / "sample_code" / "07_torch_models" / "samples.py"
FORWARD = ("gpt2", "llama", "qwen2", "bert", "vit", "resnet", "mixtral", "mixtral_batched", "t5")


@pytest.fixture(scope="module")
def samples() -> Any:
    import runpy

    return runpy.run_path(str(SAMPLES))


def leaves(found: Any) -> list[Any]:
    return [one for one in torch.utils._pytree.tree_leaves(found) if hasattr(one, "dtype")]


class Block(torch.nn.Module):
    """A bit of everything: a buffer, a tied weight, changes in place, a part without gradients."""

    def __init__(self, width: int = 8, words: int = 12) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(words, width, padding_idx=0)
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.ModuleList([torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)])
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width))
        self.register_buffer("fixed", torch.arange(float(width)), persistent=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.embed(ids) * self.scale
        with torch.no_grad():
            bias = (self.fixed * x.mean()).cos()
        y = self.up[1](torch.nn.functional.gelu(self.up[0](self.norm(x))))
        y += x
        logits = self.head(y + bias)
        if labels is None:
            return {"logits": logits}
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def block(dtype: torch.dtype = torch.float32) -> tuple[Block, torch.Tensor]:
    torch.manual_seed(0)
    return Block().to(dtype), torch.tensor([[1, 5, 0, 7, 3, 2], [4, 4, 9, 11, 0, 6]])


def test_a_module_has_its_names_types_and_lines() -> None:
    module, ids = block()
    model = ash.from_torch(module, (ids,))
    names = {one.name: str(one.type) for one in model.get_parameters()}
    assert names == {
        "embed.weight": "f32[12, 8]", "norm.weight": "f32[8]", "norm.bias": "f32[8]", "up.0.weight": "f32[32, 8]",
        "up.0.bias": "f32[32]", "up.1.weight": "f32[8, 32]", "up.1.bias": "f32[8]", "scale": "f32[8]",
    }  # fmt: skip
    assert [one.name for one in model.untrainable_params()] == ["scale"]
    graph = model.traced.graph
    assert graph.name == "Block" and [value.name for value in graph.inputs][:1] == ["ids"]
    node = graph.node("up.0.matmul")
    assert (
        node.source is not None
        and node.source.text == "y = self.up[1](torch.nn.functional.gelu(self.up[0](self.norm(x))))"
    )
    assert node.source.file.endswith("test_torch_models.py")
    assert graph.node("head.matmul").operands[1].name == "embed.weight"


def test_what_stands_for_functions_of_torch_has_the_users_line() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    graph = ash.from_torch(Wrapped(net), (torch.randn(6, 4),)).traced.graph
    assert {node.source.text for node in graph.nodes if node.source is not None} == {"return self.net(x).tanh()"}


class Wrapped(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).tanh()


def test_it_runs_whole_and_split_and_by_itself() -> None:
    module, ids = block()
    wanted = module(ids)["logits"].detach().numpy()
    model = ash.from_torch(module, (ids,))
    split = ash.plan(model, mesh="dp=2 tp=2", search="factor").run
    for found in (model(ids.numpy()), model.traced(ids.numpy()), split(ids.numpy())):
        np.testing.assert_allclose(found["logits"], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.reference()[0], wanted)
    assert [str(of) for of in model.input_types.values()] == ["i64[2, 6]"]


def test_a_program_and_a_file_are_the_same_as_the_module(tmp_path: Path) -> None:
    module, ids = block()
    program = torch.export.export(module, (ids,))
    torch.export.save(program, tmp_path / "block.pt2")
    wanted = module(ids)["logits"].detach().numpy()
    for target in (program, tmp_path / "block.pt2", str(tmp_path / "block.pt2")):
        model = ash.from_torch(target)
        np.testing.assert_allclose(model.traced(*model.example_arrays)["logits"], wanted, rtol=1e-5, atol=1e-6)
        assert model.parameters_dict().keys() >= {"up.0.weight", "scale"}
        np.testing.assert_allclose(model.reference()[0], wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_kept(dtype: torch.dtype) -> None:
    module, ids = block(dtype)
    model = ash.from_torch(module, (ids,))
    found = ash.plan(model, mesh="tp=4", search="factor").run(ids.numpy())["logits"]
    assert str(found.dtype) == str(dtype).removeprefix("torch.")
    wanted = module(ids)["logits"].detach().float().numpy()
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, rtol=0.03, atol=0.03)


def test_a_model_on_the_meta_device_is_planned_but_not_run() -> None:
    with torch.device("meta"):
        module = Block(width=4096, words=128_000)
        ids = torch.zeros(8, 512, dtype=torch.long)
    planned = ash.plan(ash.from_torch(module, (ids,)), mesh="dp=2 tp=4", search="factor")
    assert planned.cost.seconds > 0
    with pytest.raises(RuntimeSetupError, match="embed.weight is on torch's meta device: it has a type but no numbers"):
        planned.run(np.zeros((8, 512), np.int64))


def stepped(
    module: torch.nn.Module, kwargs: dict, loss: Any, optimizer: Any, steps: int = 2
) -> dict[str, torch.Tensor]:
    """torch's state after some steps."""
    module = copy.deepcopy(module)
    chosen = optimizer(module.parameters())
    for _ in range(steps):
        chosen.zero_grad()
        found = module(**kwargs)
        (loss(found) if callable(loss) else found["loss"]).backward()
        chosen.step()
    return module.state_dict()


def same_state(model: Any, wanted: dict[str, torch.Tensor], tolerance: float = 1e-3) -> None:
    state = model.state()
    assert set(state) <= set(wanted) and len(state) > 3
    for name, found in state.items():
        np.testing.assert_allclose(found, wanted[name], rtol=tolerance, atol=tolerance / 10, err_msg=name)


OPTIMIZERS = {
    "sgd": (lambda p: nn.SGD(p, 0.5), lambda p: torch.optim.SGD(p, 0.5)),
    "momentum": (lambda p: nn.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "adam": (lambda p: optim.Adam(p, 1e-2, eps=1e-4), lambda p: torch.optim.Adam(p, 1e-2, eps=1e-4)),
    "adamw": (lambda p: nn.AdamW(p, 1e-2, eps=1e-4), lambda p: torch.optim.AdamW(p, 1e-2, eps=1e-4)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_training_equal_those_of_torch(name: str) -> None:
    ours, theirs = OPTIMIZERS[name]
    module, ids = block()
    kwargs = {"ids": ids, "labels": ids.roll(1, 1)}
    model = ash.from_torch(module, kwargs=kwargs, loss="output.loss", optimizer=ours)
    planned = ash.plan(model, mesh="dp=2 tp=2", search="factor")
    for _ in range(2):
        planned.run(*model.example_arrays)
    same_state(model, stepped(module, kwargs, "loss", theirs))


def test_a_loss_may_be_a_function_of_torch() -> None:
    module, ids = block()
    loss = lambda found, ids: found["logits"].float().square().mean()  # noqa: E731
    model = ash.from_torch(module, kwargs={"ids": ids}, loss=loss, optimizer=lambda p: nn.SGD(p, 0.5))
    assert model.traced.graph.node("up.0.matmul") and "up.0.weight" in model.parameters_dict()
    first = float(model.traced(*model.example_arrays))
    model.traced(*model.example_arrays)
    same_state(model, stepped(module, {"ids": ids}, lambda found: loss(found, ids), lambda p: torch.optim.SGD(p, 0.5)))
    assert first == pytest.approx(float(loss(module(ids), ids)), rel=1e-5)


def test_statistics_of_batch_norm_are_updated() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3, stride=2), torch.nn.BatchNorm2d(6), torch.nn.Flatten())
    x = torch.randn(4, 3, 7, 9) * 3 + 1
    model = ash.from_torch(module, (x,), name="net")
    found = ash.plan(model, mesh="dp=2 tp=2", search="factor").run(x.numpy())
    np.testing.assert_allclose(found, module(x).detach(), rtol=1e-4, atol=1e-5)
    same_state(model, module.state_dict(), 1e-4)
    assert int(model.state()["1.num_batches_tracked"]) == 1


def test_dropout_drops_others_in_every_step_alike_on_any_number_of_ranks() -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(0.25), torch.nn.Dropout(0.25))
    x = torch.ones(8, 64)
    model = ash.from_torch(module, (x,), name="net")
    whole, split = model.traced, ash.plan(ash.from_torch(module, (x,), name="net"), mesh="dp=2 tp=2", search="factor")
    first, second = whole(x.numpy()), whole(x.numpy())
    np.testing.assert_array_equal(first, split.run(x.numpy()))
    np.testing.assert_array_equal(second, split.run(x.numpy()))
    assert (first != second).any() and set(np.unique(first).round(5)) == {0, np.float32(1.77778)}
    assert 0.4 < (first > 0).mean() < 0.72


def test_a_planned_model_can_be_written_down() -> None:
    module, ids = block()
    planned = ash.plan(ash.from_torch(module, (ids,)), mesh="tp=2", search="factor")
    again = pickle.loads(pickle.dumps(planned))
    np.testing.assert_array_equal(again.run(ids.numpy())["logits"], planned.run(ids.numpy())["logits"])


@pytest.mark.parametrize(
    "name", [one if one == "llama" else pytest.param(one, marks=pytest.mark.slow) for one in FORWARD]
)
def test_models_of_transformers_equal_torch_whole_and_split(samples: Any, name: str) -> None:
    torch.manual_seed(0)
    module, kwargs = samples[name]()
    model = ash.from_torch(module, kwargs=kwargs)
    planned = ash.plan(model, mesh="dp=2 tp=4")
    arrays = model.arrays(**kwargs)
    for found in (model.traced(*arrays), planned.run(*arrays)):
        for got, want in zip(leaves(found), model.reference(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert any(planned.plan.strategy(node).work_split == 8 for node in planned.graph.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_training_transformers_equals_torch(samples: Any, name: str) -> None:
    """Mixtral and ResNet are trained in `test_torch_on_ranks`."""
    torch.manual_seed(0)
    model = samples[f"{name}_training"]()
    module, (_, kwargs) = model.module, model.example
    wanted = stepped(module, kwargs, "loss", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), steps=1)
    loss = ash.plan(model, mesh="dp=2 tp=4", search="factor").run(*model.example_arrays)
    np.testing.assert_allclose(loss, model.reference()[0], rtol=1e-4)
    same_state(model, wanted)


class Parts(torch.nn.Module):
    """Buffers that are parts of one tensor, and a parameter beside the transpose of it."""

    def __init__(self) -> None:
        super().__init__()
        both, weight = torch.arange(6.0).reshape(2, 3) + 1, torch.arange(12.0).reshape(3, 4) / 7
        self.register_buffer("scale", both[0])
        self.register_buffer("shift", both[1])
        self.into, self.back = torch.nn.Parameter(weight), torch.nn.Parameter(weight.t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale + self.shift) @ self.into @ self.back


def test_parts_of_one_tensor_are_different_parameters() -> None:
    module, x = Parts(), torch.ones(2, 3)
    model = ash.from_torch(module, (x,))
    assert [one.name for one in model.get_parameters()] == ["into", "back", "scale", "shift"]
    found = ash.plan(model, mesh="tp=2", search="factor").run(x.numpy())
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-6)
