"""What commands print with --json obeys the schemas that `autoshard schema` prints."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from autoshard.cli.schemas import SCHEMAS

ROOT = Path(__file__).resolve().parents[2]
FFN = f"{ROOT}/sample_code/sharding_propagation/train.py:forward"
MLP = f"{ROOT}/sample_code/06_shardings_by_rule/mlp.py:forward"
CALLS = {
    "plan": ["plan", FFN, "-n", "8", "--json"],
    "plan with all": ["plan", FFN, "-n", "8", "--json", "--all"],
    "diff": ["diff", FFN, "-n", "8", "--against", "data_parallel", "--json"],
    "compare": ["compare", FFN, "-n", "8", "--mode", "bfs", "--mode", "expert_parallel", "--memory", "1 MiB", "--json"],
    "partition": ["partition", FFN, "-n", "8", "--json"],
    "redistribute": ["redistribute", "f32[64, 1024] dp, tp -> tp, dp", "--mesh", "dp=2,tp=4", "--json"],
    "redistribute across a reshape": [
        "redistribute", "f32[24, 5] a.b, - -> f32[4, 30] b, a", "--mesh", "a=2,b=4", "--json"
    ],
    "propagate": ["propagate", MLP, "--mesh", "batch=2,model=4", "--json"],
    "schedule": ["schedule", "1f1b", "--stages", "4", "--micro-batches", "8", "--json"],
    "truth": ["truth", "--only", "GPT 22B tp=8 full", "--only", "GPT 39.1B", "--json"],
}  # fmt: skip


def checked(cli, command: str, printed: str) -> None:
    code, text, _ = cli("schema", command)
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator(schema)
    data = json.loads(printed)
    checker.validate(data)
    assert code == 0 and f"autoshard {command}" in schema["title"] or command == "diff"
    assert not checker.is_valid({**data, "more": 1}) and not checker.is_valid({})


@pytest.mark.parametrize("which", CALLS)
def test_json_obeys_its_schema(cli, which):
    _, out, _ = cli(*CALLS[which])
    checked(cli, CALLS[which][0], out)


def test_a_checkpoint_obeys_its_schema(cli, tmp_path):
    import numpy as np

    from autoshard.core.tensortype import type_of
    from autoshard.layout import Layout, Mesh
    from autoshard.runtime.array import cut
    from autoshard.runtime.checkpoint import LocalBlocks, Placed, save
    from autoshard.runtime.local import LocalComm

    comm, array = LocalComm(4), np.arange(54, dtype=np.float32).reshape(6, 9)
    layout = Layout.parse("dp, tp", Mesh(dp=2, tp=2))
    save(
        tmp_path / "ck",
        {"w": LocalBlocks(cut(array, layout, comm.ranks), Placed(type_of(array), layout))},
        comm,
        10,
        {},
    )
    checked(cli, "checkpoint", cli("checkpoint", "show", str(tmp_path / "ck"), "--json")[1])


def test_every_command_with_json_has_a_schema(cli):
    """Whatever command has --json, its schema is there; and unknown names are told."""
    import typer

    from autoshard.cli import app

    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    having = {
        name
        for name, command in commands.items()
        for one in (command, *getattr(command, "commands", {}).values())
        if any("--json" in option.opts for option in one.params)
    }
    assert having == set(SCHEMAS) == set(cli("schema")[1].split())
    assert (
        cli("schema", "plann")[2].strip().startswith("autoshard: there is no schema of 'plann'; did you mean 'plan'?")
    )
