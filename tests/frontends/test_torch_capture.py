"""Capturing a module quickly gives the program that torch.export gives: nodes, types, sources, signature."""

from __future__ import annotations

import copy
import gc
import io
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import transformers
from torch.fx import proxy
from torch.utils._pytree import tree_leaves

import autoshard as ash
from autoshard.frontends.torch.quick import quick_capture, with_code
from autoshard.util.errors import ParseError
from autoshard.util.gc_paused import gc_paused

pytestmark = pytest.mark.torch

SIZES = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36}


class InPlace(torch.nn.Module):
    """Changes results of composites in place, in part without gradients and in part in another element type."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(4)])
        self.norm = torch.nn.LayerNorm(6)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.relu_(layer(x))
            x += self.norm(x)
        with torch.no_grad():
            self.get_buffer("seen").add_(self.layers[0](x).mean((0, 1)))
            x = x + self.layers[1](x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = self.layers[1](x) + self.layers[2](x)
        turned = torch.matmul(x.transpose(0, 1), x.transpose(0, 1).mT)
        return x * low + torch.matmul(turned, x.transpose(0, 1)).transpose(0, 1)


class Chooses(torch.nn.Module):
    """Graphs inside of the graph, with equal operators inside and outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.layer(torch.cond(y.sum() > 0, lambda a: self.layer(a) * 2, lambda a: self.layer(a) + 1, (y,)))


class Asks(torch.nn.Module):
    """Does what it finds a result of a composite to be."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.fixed = torch.nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.layer, self.fixed, self.layer, self.fixed):
            y = layer(x.detach())
            x = y * 2 if y.requires_grad else y + 1
            x = x if y.is_leaf else x - 1
            x = x * y.stride(0) if y.is_contiguous() and not y._is_view() else x
            x = x.transpose(0, 1).contiguous()
        return x


def _language_model(kind: str, **sizes: Any) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    config = getattr(transformers, f"{kind}Config")(use_cache=False, **SIZES, **sizes)
    words = torch.zeros((2, 5), dtype=torch.long)
    return getattr(transformers, f"{kind}ForCausalLM")(config), {"input_ids": words, "labels": words}


def _images() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 2])
    return transformers.ResNetForImageClassification(config).eval(), {"pixel_values": torch.zeros(2, 3, 32, 32)}


MODELS = {
    "llama": lambda: _language_model("Llama", num_key_value_heads=2),
    "mixtral": lambda: _language_model("Mixtral", num_key_value_heads=2, num_local_experts=3),
    "resnet": _images,
    "in place": lambda: (InPlace(), {"x": torch.zeros(2, 3, 6)}),
    "chooses": lambda: (Chooses(), {"x": torch.zeros(2, 3, 6)}),
    "asks": lambda: (Asks(), {"x": torch.zeros(6, 6)}),
}


def _told(program: Any) -> list[Any]:
    """All that a program says, as plain data."""
    told: list[Any] = [str(program.graph_signature), str(program.graph), program.graph_module.code]
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            kept = {name: _same(str(value)) for name, value in node.meta.items() if name not in ("val", "from_node")}
            told.append((node.name, str(node.target), str(node.args), str(node.kwargs), kept, _types(node)))
    return told


def _same(text: str) -> str:
    """Without the numbers that torch gives to pieces of generated code."""
    return re.sub(r"<eval_with_key>\.\d+", "<code>", text)


def _types(node: torch.fx.Node) -> list[Any]:
    found = tree_leaves(node.meta.get("val"))
    tensors = [one for one in found if isinstance(one, torch.Tensor)]
    return [(one.shape, one.stride(), one.dtype, one.device, one.requires_grad) for one in tensors]


@pytest.mark.parametrize("name", MODELS)
def test_the_program_is_that_of_torch(name: str) -> None:
    module, inputs = MODELS[name]()
    wanted = _told(torch.export.export(module, (), inputs))
    with quick_capture():
        found = torch.export.export(module, (), inputs)
    for one, other in zip(_told(with_code(found)), wanted, strict=True):
        assert one == other


def patched() -> tuple[Any, ...]:
    """What of torch is another while a module is captured."""
    return torch.fx.GraphModule.recompile, proxy.CapturedTraceback


def test_a_program_can_be_run_and_torch_is_as_before() -> None:
    module, inputs = MODELS["llama"]()
    before = patched()
    with quick_capture():
        found = torch.export.export(module, (), inputs)
        assert not set(patched()) & set(before)
        early = found.module()(**inputs)  # code comes when it is asked for
    assert patched() == before
    wanted = module(**inputs)
    for run in (early, with_code(found).module()(**inputs)):
        torch.testing.assert_close(run.logits, wanted.logits)


def test_code_is_made_when_it_is_read() -> None:
    module, inputs = MODELS["in place"]()
    wanted = module(**inputs)
    with quick_capture():
        assert not gc.isenabled()
        found = torch.export.export(module, (), inputs)
        again = torch.export.export(module, (), inputs)
    assert gc.isenabled()
    held = io.BytesIO()
    torch.export.save(with_code(found), held)
    assert "_code" not in vars(with_code(again).graph_module)
    for one in (copy.deepcopy(again), torch.export.load(io.BytesIO(held.getvalue())), again.run_decompositions({})):
        torch.testing.assert_close(one.module()(**inputs), wanted)
    code = again.graph_module.code
    assert "def forward(self" in code and vars(again.graph_module)["_code"] == code
    assert with_code(again).graph_module.code == code


def test_what_does_not_fit_is_refused_as_ever() -> None:
    class Unfit(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            good = torch.nn.functional.linear(x, weight)
            return torch.nn.functional.linear(good, weight)

    inputs = (torch.zeros(2, 4), torch.zeros(5, 4))
    with pytest.raises(RuntimeError, match="size mismatch|shapes|must match|have same reduction"):
        torch.export.export(Unfit(), inputs)
    with pytest.raises(RuntimeError, match="size mismatch|shapes|must match|have same reduction"), quick_capture():
        torch.export.export(Unfit(), inputs)


class _Meeting:
    """Two threads that are inside of something at once and leave it in the order in which they came."""

    def __init__(self, inside: Callable[[], AbstractContextManager[None]]) -> None:
        self.inside, self.seen = inside, []
        self.first_in, self.second_in, self.first_out = threading.Event(), threading.Event(), threading.Event()

    def run(self, look: Callable[[], Any]) -> list[Any]:
        """What is to be seen by a third thread meanwhile, and by the second one when the first is out."""
        threads = [threading.Thread(target=self.first), threading.Thread(target=self.second, args=(look,))]
        for thread in threads:
            thread.start()
        assert self.second_in.wait(60)
        for thread in threads:
            thread.join(60)
        return self.seen

    def first(self) -> None:
        with self.inside():
            self.first_in.set()
            self.second_in.wait(60)
        self.first_out.set()

    def second(self, look: Callable[[], Any]) -> None:
        self.first_in.wait(60)
        with self.inside():
            self.second_in.set()
            self.first_out.wait(60)
            self.seen.append(look())


def test_two_threads_may_capture_and_torch_is_as_before() -> None:
    before = patched()
    (during,) = _Meeting(quick_capture).run(patched)
    assert patched() == before and not set(during) & set(before)


def test_the_collector_waits_for_the_last_thread() -> None:
    assert gc.isenabled()
    assert _Meeting(gc_paused).run(gc.isenabled) == [False]
    assert gc.isenabled()


def test_other_threads_see_torch_as_it_is() -> None:
    """While one thread captures, graph modules of others get their code at once."""
    made = []

    def other() -> None:
        made.append(torch.fx.symbolic_trace(torch.nn.Linear(2, 3)))

    with quick_capture():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
    assert "_code" in vars(made[0]) and "linear" in made[0].code


def test_threads_import_and_plan_at_once() -> None:
    def work(width: int) -> None:
        torch.manual_seed(width)
        module, x = torch.nn.Sequential(torch.nn.Linear(width, 6), torch.nn.GELU()), torch.randn(8, width)
        model = ash.from_torch(module, (x,))
        found = ash.plan(model, mesh="x=2").run(x.numpy())
        torch.testing.assert_close(torch.from_numpy(found), module(x).detach())

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, (3, 4, 5)))


class _Strided(torch.nn.Module):
    """Asks buffers for sizes, and constants of its own for what they hold; `part` is what makes the output of x."""

    def __init__(self, part: Callable) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.register_buffer("stride", torch.tensor(2))
        self.register_buffer("seen", torch.tensor(0))
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self, self.layer(x))


def _padded(net: Any, x: torch.Tensor) -> torch.Tensor:
    wide = torch.ceil((x.shape[-1] + 3) / net.stride).to(torch.int64)
    x = torch.nn.functional.pad(x, (wide, 8 - wide))
    return x[..., : 10 - int(net.stride)] if max(net.stride, wide) == wide else x


def _masked(net: Any, x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros_like(x[:, 0])
    if mask.bool().any().item():
        x = x * x.new_empty(3)
    mask[1:] = 1
    first, *rest = mask.split(1)
    if first.any() or not torch.stack(rest).all():
        x = x.relu_()
    return x + 1 if mask.sum() == len(mask) - 1 else x.add_(2)


@pytest.mark.parametrize("part", [_padded, _masked])
def test_numbers_of_constants_and_of_integer_buffers_are_known(part: Callable) -> None:
    net, x = _Strided(part), torch.linspace(-1, 1, 24).reshape(4, 6)
    found = ash.from_torch(net, (x,)).traced(x.numpy())
    torch.testing.assert_close(torch.from_numpy(found), net(x).detach())


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return x[:, :, None] * x[:, None]


def _filled(net: Any, x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(4, 6, 6)
    made[:, net.mask] = x[:, :1] * torch.arange(15)
    return made


BY_PLACES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "a buffer": lambda net, x: _pairs(x)[:, net.mask],
    "of a range, and an index": lambda net, x: x[torch.arange(4) % 2 == 0, 1],
    "masked_select": lambda net, x: torch.masked_select(_pairs(x), net.mask),
    "nonzero": lambda net, x: sum(x[:, i] for i in net.mask[0].nonzero()),
    "where": lambda net, x: _pairs(x)[:, torch.where(net.mask)[0], torch.where(net.mask)[1]],
    "unique": lambda net, x: x[:, (torch.arange(8) // 3).unique()],
    "repeats": lambda net, x: x.repeat_interleave(torch.tensor([1, 2, 0, 3, 1, 1]), dim=1),
    "set": _filled,
}


@pytest.mark.parametrize("name", BY_PLACES)
def test_elements_are_taken_by_known_masks(name: str) -> None:
    net, x = _Strided(BY_PLACES[name]), torch.linspace(-1, 1, 24).reshape(4, 6)
    net.register_buffer("mask", torch.ones(6, 6).triu(1).bool())
    planned = ash.plan(ash.from_torch(net, (x,)), mesh="dp=2 tp=3")
    torch.testing.assert_close(torch.from_numpy(planned.run(x.numpy())), net(x).detach())


def _of_data(net: Any, x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(4)
    part = mask[:2]
    part[0] = x[0, 0]
    return x.relu_() if mask.all() else x


def _written(net: Any, x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(4).bool()
    torch.logical_and(mask.view_as(x[:, 0]), x[:, 0] > 0, out=mask)
    return x.relu_() if mask.all() else x


def _random(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x.relu_() if torch.nn.functional.dropout(torch.ones(4)).any() else x


def _changed(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.seen += 1
    return x.relu_() if net.seen == 1 else x


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (_of_data, "asks for a tensor's values"),
        (_random, "asks for a tensor's values"),
        (_changed, "its buffer 'seen'"),
    ],
)
def test_numbers_that_change_are_not_known(part: Callable, told: str) -> None:
    with pytest.raises(ParseError, match=told):
        ash.from_torch(_Strided(part), (torch.ones(4, 6),))


def test_a_module_may_be_converted_to_what_it_is() -> None:
    def converted(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.layer = net.layer.to(x.dtype)
        return net.layer(x)

    net, x = _Strided(converted), torch.ones(4, 6)
    torch.testing.assert_close(torch.from_numpy(ash.from_torch(net, (x,)).traced(x.numpy())), net(x).detach())


def test_what_models_leave_out_when_compiled_is_captured() -> None:
    config = transformers.LongT5Config(
        vocab_size=40,
        d_model=8,
        d_kv=4,
        d_ff=6,
        num_layers=1,
        num_heads=2,
        local_radius=2,
        decoder_start_token_id=0,
        use_cache=False,
    )
    net, ids = transformers.LongT5ForConditionalGeneration(config).eval(), torch.randint(0, 40, (2, 6))
    model = ash.from_torch(net, kwargs={"input_ids": ids, "labels": ids}, loss="loss")
    found = model.traced(*model.example_arrays)
    torch.testing.assert_close(torch.tensor(float(found)), net(input_ids=ids, labels=ids).loss.detach())
