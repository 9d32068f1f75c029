"""Runs schedules from files by torch's pipeline runtime on four gloo ranks; prints for each how far gradients are from
those of the model in one piece, relative to the largest.

Called with the folder of the files; processes are forks of this one, which has imported torch.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from autoshard.pipeline.schedules import load_schedule

RANKS, WIDTH, ROWS = 4, 6, 16


def model(stages: int) -> list[torch.nn.Module]:
    torch.manual_seed(5)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(stages)]


def loss(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return ((found - wanted) ** 2).mean()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(6)
    return torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


def whole(stages: int) -> list[list[torch.Tensor]]:
    parts, (x, y) = model(stages), batch()
    loss(torch.nn.Sequential(*parts)(x), y).backward()
    return [[p.grad for p in part.parameters()] for part in parts]


def run(path: Path, rank: int) -> float:
    found = load_schedule(path)
    parts, (x, y) = model(found.stages), batch()
    own = found.chunks(rank)
    stages = [PipelineStage(parts[stage], stage, found.stages, torch.device("cpu")) for stage in own]
    schedule = _PipelineScheduleRuntime(stages, found.micro_batches, loss_fn=loss)
    # The places of stages are told, too: stages look for their neighbours there.
    places = dict(enumerate(found.ranks_of_stages))
    schedule.stage_index_to_group_rank = places
    for stage in stages:
        stage.stage_index_to_group_rank = places
    schedule._load_csv(str(path), format="compute_only")
    arguments = [x] if 0 in own else []
    schedule.step(*arguments, target=y if found.stages - 1 in own else None)
    reference = whole(found.stages)
    pairs = [
        (p.grad, wanted) for stage in own for p, wanted in zip(parts[stage].parameters(), reference[stage], strict=True)
    ]
    return max(float((got - wanted).abs().max() / wanted.abs().max()) for got, wanted in pairs)


def worker(rank: int, folder: Path, answers) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    answers.put({path.stem: run(path, rank) for path in sorted(folder.glob("*.csv"))})
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    folder = Path(sys.argv[1])
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    workers = [context.Process(target=worker, args=(rank, folder, answers)) for rank in range(RANKS)]
    for one in workers:
        one.start()
    found = [answers.get(timeout=120) for _ in workers]
    for one in workers:
        one.join(timeout=60)
    print(json.dumps({name: max(one[name] for one in found) for name in found[0]}))


if __name__ == "__main__":
    main()
