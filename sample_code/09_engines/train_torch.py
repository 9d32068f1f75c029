"""Train a model of Hugging Face's transformers as autoshard plans it: on 8 ranks with ZeRO, saved, and resumed on 4.

torchrun --nproc-per-node 8 train_torch.py --mesh dp=8 --save checkpoint
torchrun --nproc-per-node 4 train_torch.py --mesh dp=4 --resume checkpoint
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed.checkpoint as dcp
import transformers

import autoshard as ash
from autoshard import optim


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4, use_cache=False
    )
    return transformers.LlamaForCausalLM(config)


def batch(number: int) -> torch.Tensor:
    return torch.randint(60, (8, 12), generator=torch.Generator().manual_seed(number))


def planned(net: torch.nn.Module, mesh: str, search: str):
    """The step of training, planned: on each rank `to_torch` makes a module of torch of it."""
    ids = {"input_ids": batch(0), "labels": batch(0)}
    step = ash.from_torch(net, kwargs=ids, loss="loss", optimizer=lambda params: optim.AdamW(params, 1e-2))
    return ash.plan(step, mesh=mesh, search=search)


def train(model, numbers: range, resume: str | None = None, save: str | None = None) -> list[float]:
    optimizer, losses = model.optimizer(), []
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if resume:
        dcp.load(state, checkpoint_id=resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for number in numbers:
        loss = model(input_ids=batch(number), labels=batch(number))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if save:
        dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=save)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", default="dp=8")
    parser.add_argument("--search", default="zero1(dp)")
    parser.add_argument("--save")
    parser.add_argument("--resume")
    told = parser.parse_args()
    net = network()
    model = planned(net, told.mesh, told.search).to_torch(net)
    found = train(model, range(4, 8) if told.resume else range(4), told.resume, told.save)
    if model.rank == 0:
        print(*(f"{loss:.6f}" for loss in found))
    torch.distributed.destroy_process_group()
