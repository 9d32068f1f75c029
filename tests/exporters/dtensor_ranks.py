"""Plans models and runs each plain and parallelized on four gloo ranks; prints what every rank found as JSON.

A script of its own: ranks are forked when everything is imported and planned, and no thread of torch's runs yet.

    python dtensor_ranks.py gpt2/dp=2,tp=2/megatron llama/dp=2,tp=2/factor table/dp=2,tp=2/megatron/adamw ...

Of those with `adamw` a step of training is planned.
"""

from __future__ import annotations

import copy
import json
import logging
import multiprocessing
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import autoshard as ash
from autoshard import optim
from autoshard.annotate import annotate
from autoshard.exporters.dtensor import parallelize
from autoshard.exporters.dtensor_states import distribute_states
from autoshard.trace.optim import State

SAMPLES = Path(ash.__file__).parents[1] / "sample_code" / "07_torch_models" / "samples.py"
RANKS = 4
COLUMNS, ROWS = ("tp", None), (None, "tp")
ASKED = {
    ("llama", "dp=2 tp=2"): {
        "input_ids": ("dp", None),
        "**.q_proj": COLUMNS,
        "**.k_proj": COLUMNS,
        "**.v_proj": COLUMNS,
        "**.o_proj": ROWS,
        "**.gate_proj": COLUMNS,
        "**.up_proj": COLUMNS,
        "**.down_proj": ROWS,
        "lm_head": COLUMNS,
    },
    ("llama", "d=4"): {
        "input_ids": ("d:(1)2", None),
        "model.layers.*.mlp.up_proj": ("d:(2)2", None),
        "model.layers.*.mlp.down_proj": (None, "d:(2)2"),
        "lm_head": ("d:(2)2", None),
    },
    ("odd", "dp=2 tp=2"): {"up": (("tp", "dp"), None), "down": ("tp", None), "x": ("dp", None)},
    ("masked", "dp=2 tp=2"): {"x": ("dp", None, None), "mask": ("dp", None), "up": COLUMNS, "down": ROWS},
    ("rows", "dp=2 tp=2"): {"x": ("dp", None, None), "up": COLUMNS, "up.bias": ("tp",)},
    ("image", "dp=2 tp=2"): {"x": ("dp", None, None, None), "wider.weight": (None, "tp", None, None)},
    ("resnet", "dp=2 tp=2"): {"pixel_values": ("dp", None, None, None), "**.convolution": ("tp", None, None, None)},
}
"""What is asked of a model on a mesh, where a search by itself would split nothing so small."""


class Odd(torch.nn.Module):
    """A function that DTensor has no rule for, a weight split by a later axis first, and sizes that do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 8), torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.up(x).roll(3, 1).flip(1)
        return {"logits": self.down(hidden) + torch.cdist(hidden, self.down.weight)}


class Table(torch.nn.Module):
    """A look-up in a table in parts by rows, with a linear function, or one of whole rows, right behind it."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.embed, self.norm = torch.nn.Embedding(12, 6), torch.nn.LayerNorm(6) if norm else torch.nn.Identity()
        self.up, self.down = torch.nn.Linear(6, 8), torch.nn.Linear(8, 10)

    def forward(self, ids: torch.Tensor) -> Any:
        return {"logits": self.down(torch.tanh(self.up(self.norm(self.embed(ids)))))}


class Dropped(torch.nn.Module):
    """A tied table, batch norm that counts, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.drop = torch.nn.Embedding(12, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3)
        self.head = torch.nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> Any:
        rows = self.norm(self.embed(ids).flatten(0, 1))
        return {"logits": self.head(self.drop(torch.tanh(rows)))}


class Masked(torch.nn.Module):
    """A sum over all ranks that is left out where nothing is masked, which is so of one rank's rows alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 8), torch.nn.Linear(8, 10)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        made = self.up(x)
        if torch.compiler.is_compiling() or not mask.all():
            made = torch.where(mask[..., None], made, made.mean())
        return {"logits": self.down(made)}


class Rows(torch.nn.Module):
    """Torch's own module of attention, whose gradient DTensor has no rule for; it drops products."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.attend = torch.nn.Linear(6, 8), torch.nn.MultiheadAttention(8, 2, 0.3, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        rows = self.up(x)
        return {"logits": self.attend(rows, rows, rows, need_weights=False)[0]}


class Image(torch.nn.Module):
    """Functions of images that DTensor runs with other splits than they have, on a batch that does not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.wider = torch.nn.ConvTranspose2d(6, 8, 2, stride=2)
        self.norm, self.last = torch.nn.GroupNorm(2, 8), torch.nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        functional = torch.nn.functional
        made = self.norm(functional.avg_pool2d(self.wider(x), 2, ceil_mode=True))
        return {"logits": self.last(functional.interpolate(made, size=(7, 9), mode="bilinear"))}


def sample(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    if name == "odd":
        torch.manual_seed(3)
        return Odd(), {"x": torch.randn(4, 6)}
    if name in ("table", "table_norm"):
        torch.manual_seed(3)
        return Table(name == "table_norm"), {"ids": torch.randint(0, 12, (4, 5))}
    if name == "dropped":
        torch.manual_seed(3)
        return Dropped(), {"ids": torch.randint(0, 12, (4, 5))}
    if name == "masked":
        torch.manual_seed(3)
        return Masked(), {"x": torch.randn(4, 5, 6), "mask": torch.arange(20).reshape(4, 5) > 2}
    if name == "rows":
        torch.manual_seed(3)
        return Rows(), {"x": torch.randn(4, 5, 6)}
    if name == "image":
        torch.manual_seed(3)
        return Image(), {"x": torch.randn(3, 6, 5, 7)}
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(3)
    module, kwargs = runpy.run_path(str(SAMPLES))[name]()
    return shortened(module), kwargs


def shortened(module: Any) -> torch.nn.Module:
    """A decoder with its first layer alone, since a second one has the same operators; other models as they are."""
    for owner, layers in (("model", "layers"), ("transformer", "h")):
        decoder = getattr(module, owner, None)
        if decoder is not None:
            setattr(decoder, layers, getattr(decoder, layers)[:1])
            module.config.num_hidden_layers = 1
    return module


def logits(output: Any) -> torch.Tensor:
    return output["logits"]


def objective(output: Any, **kwargs: torch.Tensor) -> torch.Tensor:
    return logits(output).square().mean()


def adam(parameters: list) -> optim.AdamW:
    return optim.AdamW(parameters, 1e-2)


def stepped(whole: torch.nn.Module, split: torch.nn.Module, planned: Any, names: list[str]) -> tuple[float, float]:
    """The largest difference of parameters after AdamW, and the share of the planned states that this rank has."""
    torch.optim.AdamW(whole.parameters(), 1e-2, eps=1e-3).step()
    optimizer = torch.optim.AdamW(split.parameters(), 1e-2, eps=1e-3)
    distribute_states(optimizer, split, planned)
    optimizer.step()
    wanted = dict(whole.named_parameters())
    apart = [(one.detach().full_tensor() - wanted[name].detach()).abs().max() for name, one in split.named_parameters()]
    states = [one for row in optimizer.state.values() for one in row.values() if one.ndim]
    layouts = {one: planned.plan.layouts[one] for one in planned.graph.inputs if one.name in names}
    share = sum(layout.local_size(one.type.shape) for one, layout in layouts.items())
    return float(max(apart)), sum(one.to_local().numel() for one in states) / share


def compared(module: torch.nn.Module, kwargs: dict[str, Any], planned: Any) -> dict[str, Any]:
    """The largest differences of outputs and gradients between a module and itself parallelized, and the blocks."""
    whole = copy.deepcopy(module)
    torch.manual_seed(4)
    wanted = logits(whole(**kwargs))
    wanted.square().mean().backward()
    split = parallelize(copy.deepcopy(module), planned)
    torch.manual_seed(4)
    found = logits(split(**kwargs))
    found.square().mean().backward()
    gradients = {name: one.grad for name, one in whole.named_parameters()}
    own = dict(split.named_parameters())
    apart = [(own[name].grad.full_tensor() - one).abs().max() for name, one in gradients.items() if one is not None]
    layouts = {value.name: planned.plan.layouts[value] for value in planned.graph.inputs}
    counts = dict(whole.named_buffers())
    kept = [(own_of(one) - counts[name]).abs().max() for name, one in split.named_buffers() if one.numel()]
    rank = dist.get_rank()
    astray = [
        name
        for name, one in split.named_parameters()
        if name in layouts and not torch.equal(one.to_local(), block_of(whole, name, layouts[name], rank))
    ]
    names = [one.name for one in planned.traced.parameters.values() if isinstance(one, State)]
    moved, held = stepped(whole, split, planned, names) if names else (0.0, 1.0)
    return {
        "moved": moved,
        "held": held,
        "output": float((found - wanted).detach().abs().max()),
        "gradient": float(max(apart)),
        "buffers": float(max(kept, default=0.0)),
        "size": float(wanted.detach().abs().max()),
        "compared": len(apart),
        "gathered": dict(split.gathered),
        "astray": astray,
        "split": sum(layout.split > 1 for name, layout in layouts.items() if name in own),
    }


def own_of(one: Any) -> torch.Tensor:
    """A tensor whole."""
    return one.full_tensor() if isinstance(one, DTensor) else one


def block_of(whole: torch.nn.Module, name: str, layout: Any, rank: int) -> torch.Tensor:
    """The block of a parameter that a layout gives to a rank."""
    tensor = whole.get_parameter(name).detach()
    return tensor[layout.block(rank, tensor.shape)]


def run(rank: int, meeting: str, cases: list[tuple], queue: Any) -> None:
    """All cases on one rank; (rank, what was found, or the trace of an error)."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    try:
        queue.put((rank, [compared(*case) for case in cases], None))
        dist.barrier()
    except Exception:
        queue.put((rank, None, traceback.format_exc()))
    dist.destroy_process_group()


def main(texts: list[str]) -> int:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    cases = []
    for name, mesh, search, *more in (text.replace(",", " ").split("/") for text in texts):
        module, kwargs = sample(name)
        trained = {"loss": objective, "optimizer": adam} if more else {}
        model = annotate(ash.from_torch(module, (), kwargs, **trained), ASKED.get((name, mesh), {}))
        cases.append((module, kwargs, ash.plan(model, mesh=mesh, search=search)))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        ranks = [context.Process(target=run, args=(rank, meeting, cases, queue)) for rank in range(RANKS)]
        for one in ranks:
            one.start()
        found = [queue.get(timeout=200) for _ in ranks]
        for one in ranks:
            one.join(timeout=20)
    troubles = [trouble for _, _, trouble in found if trouble]
    if troubles:
        print(troubles[0], file=sys.stderr)
        return 1
    print(json.dumps([told for _, told, _ in sorted(found, key=lambda one: one[0])]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
