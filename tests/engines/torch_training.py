"""The sample of training on torch, checked on 2 ranks: started by `test_to_torch.py`.

Ranks are forked when all is imported and planned, and no thread of torch's runs yet.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

import autoshard as ash
from autoshard import optim
from autoshard.api import Planned
from autoshard.util.errors import AutoshardError
from tests.engines.recorded import difference

SAMPLE = Path(__file__).parents[2] / "sample_code/09_engines/train_torch.py"
RANKS = 2


def main(folder: Path) -> int:
    """Plan, and check on each rank; the exit code."""
    spec = importlib.util.spec_from_file_location("train_torch", SAMPLE)
    assert spec is not None and spec.loader is not None
    sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sample)
    net = sample.network()
    plans = [sample.planned(net, mesh, search) for mesh, search in (("dp=2", "zero1(dp)"), ("tp=2", "megatron"))]
    plans += [dropping(), scaling()]
    for one in plans:
        _ = one.program  # once, not by each rank
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=on_rank, args=(rank, folder, sample, plans)) for rank in range(RANKS)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    return max(abs(one.exitcode or 0) for one in ranks)


def dropping_net() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4)
    )


def dropping() -> Planned:
    """A step that drops elements, clips its gradients, and changes its rate."""
    step = ash.from_torch(
        dropping_net(),
        (torch.ones(6, 6),),
        loss=lambda output, x: output.square().mean(),
        optimizer=lambda params: optim.AdamW(params, [1e-2, 1e-3], clip_norm=0.1),
    )
    return ash.plan(step, mesh="dp=2", search="zero1(dp)")


def scaled_net() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


def scaling() -> Planned:
    """A step with a dynamic scale of its loss."""
    step = ash.from_torch(
        scaled_net(),
        (torch.ones(6, 6),),
        loss=lambda output, x: output.square().mean(),
        optimizer=lambda params: optim.AdamW(params, 1e-2, loss_scale=optim.DynamicLossScale(64.0, window=2)),
    )
    return ash.plan(step, mesh="dp=2", search="zero1(dp)")


def on_rank(rank: int, folder: Path, sample: Any, plans: list[Any]) -> None:
    """3 steps with ZeRO, saved, and 2 more by another plan are what torch.optim does in 5 on one rank."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), RANKS)  # pyright: ignore[reportPrivateImportUsage]
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    saved, net = str(folder / "state"), sample.network()
    model, again = (one.to_torch(net) for one in plans[:2])
    found = sample.train(model, range(3), save=saved)
    assert not difference(model.steps.collectives.done, model.program, model.rank, 3)
    found += sample.train(again, range(3, 5), resume=saved)

    assert set(again.state_dict()) == set(net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    wanted = []
    for number in range(5):
        loss = net(input_ids=sample.batch(number), labels=sample.batch(number)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    states_are_split(model)
    whole_and_torchs_own(again, net, optimizer)
    refused(again, sample)
    gradients_stay_inside(again, sample)
    not_in_evaluation(plans[2])
    scales_as_torch(plans[3])
    print("equal", len(model.program.collectives), flush=True)
    torch.distributed.destroy_process_group()


def scales_as_torch(planned: Planned) -> None:
    """The step that overflows is skipped; states of the scale are among those of the optimizer, which go on."""
    net = scaled_net()
    own, scaler = torch.optim.AdamW(net.parameters(), 1e-2), torch.amp.GradScaler("cpu", 64.0, growth_interval=2)
    model = planned.to_torch(net)
    optimizer = model.optimizer()
    for number, factor in enumerate((1.0, float("inf"), 1.0, 1.0, 1.0)):
        if number == 3:
            states = optimizer.state_dict()
            model = planned.to_torch(net)
            model.load_state_dict(net.state_dict())
            optimizer = model.optimizer()
            optimizer.load_state_dict(states)
        x = torch.linspace(-1, 1, 36).reshape(6, 6) * factor
        own.zero_grad()
        scaler.scale(net(x).square().mean()).backward()
        scaler.step(own)
        scaler.update()
        model(x).backward()
        optimizer.step()
        for name, tensor in model.whole_state_dict().items():
            torch.testing.assert_close(tensor, net.state_dict()[name], rtol=1e-4, atol=1e-6)
    row = next(iter(optimizer.state.values()))
    assert float(row["loss_scale.scale"]) == scaler.get_scale() and float(row["loss_scale.skipped"]) == 1


def states_are_split(model) -> None:
    """Under ZeRO a rank holds half of the optimizer's states, whatever the parameters are."""
    states = [one for row in model.optimizer().state.values() for one in row.values() if isinstance(one, DTensor)]
    assert states and sum(one.to_local().numel() for one in states) < 0.6 * sum(one.numel() for one in states)


def whole_and_torchs_own(model, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Whole parameters are the network's, whole states of torch's own optimizer can be loaded, and back."""
    whole = model.whole_state_dict()
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(whole[name], tensor, rtol=1e-2, atol=1e-3)
    model.load_state_dict(net.state_dict())
    own = model.optimizer()
    own.load_state_dict({**optimizer.state_dict(), "param_groups": own.state_dict()["param_groups"]})
    order = {id(one): name for name, one in net.named_parameters()}
    for one, row in optimizer.state.items():
        state = own.state[dict(model.named_parameters())[order[id(one)]]]
        torch.testing.assert_close(state["exp_avg"].full_tensor(), row["exp_avg"])
        assert state["step"] == row["step"] == 5


def refused(model, sample) -> None:
    """What the plan cannot do is an error on every rank."""
    ids = {"input_ids": sample.batch(0), "labels": sample.batch(0)}
    with pytest.raises(AutoshardError, match="no gradient to step by"):
        model.optimizer().step()
    with pytest.raises(AutoshardError, match="belongs into the loss"):
        (model(**ids) / 2).backward()
    with pytest.raises(AutoshardError, match="takes 2 tensors"):
        model(input_ids=ids["input_ids"])
    with pytest.raises(AutoshardError, match=r"has shape \[8, 12\], not \[4, 12\]"):
        model(input_ids=ids["input_ids"][:4], labels=ids["labels"])
    optimizer = model.optimizer()
    model(**ids).backward()
    optimizer.param_groups[0]["lr"] = 1.0
    with pytest.raises(AutoshardError, match=r"lr is 1.0, but the plan's step has 0.01"):
        optimizer.step()
    with pytest.raises(AutoshardError, match="the plan is for another module"):
        model.planned.to_torch(torch.nn.Linear(3, 4))


def gradients_stay_inside(model, sample) -> None:
    """What would read or change gradients, or add them up, is refused by its line; dropped ones are gone."""
    ids, optimizer = {"input_ids": sample.batch(0), "labels": sample.batch(0)}, model.optimizer()
    optimizer.zero_grad()
    stale = model(**ids)
    model(**ids).backward()
    for change in (
        lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 1.0),
        lambda: next(model.parameters()).grad.norm(),
    ):
        with pytest.raises(
            AutoshardError, match=r"inside of the planned step.* at .*torch_training.py:\d+; .*clip_norm"
        ):
            change()
    with pytest.raises(AutoshardError, match=r"of an earlier loss at .*torch_training.py:\d+.*micro_batches=N"):
        model(**ids).backward()
    optimizer.step()
    assert all(one.grad is None for one in model.parameters())
    with pytest.raises(AutoshardError, match="updated since this loss was made"):
        stale.backward()
    model(**ids).backward()
    optimizer.zero_grad()
    with pytest.raises(AutoshardError, match="no gradient to step by"):
        optimizer.step()
    before, loss = model.whole_state_dict(), model(**ids)
    loss.backward()
    optimizer.step()
    assert any(not torch.equal(one, before[name]) for name, one in model.whole_state_dict().items())


def not_in_evaluation(planned: Planned) -> None:
    """A step of training is not what the module does in evaluation; steps go on after it."""
    made = planned.to_torch(dropping_net())
    made.eval()
    with pytest.raises(AutoshardError, match=r"changes 1\.\w+ and does the same in eval\(\) at .*training.py"):
        made(torch.ones(6, 6))
    made.train()
    optimizer, before = made.optimizer(), made.whole_state_dict()
    made(torch.ones(6, 6)).backward()
    optimizer.step()
    changed = [name for name, one in made.whole_state_dict().items() if not torch.equal(one, before[name])]
    assert {"1.running_mean", "1.num_batches_tracked", "3.weight"} <= {*changed}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
