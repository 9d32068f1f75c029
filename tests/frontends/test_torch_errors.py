"""What cannot be imported: the texts of the errors, each with the values and the way out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import autoshard as ash
from autoshard import nn
from autoshard.util.errors import (
    AutoshardError,
    GraphError,
    ParseError,
    RuntimeSetupError,
    ShapeError,
    UnknownNameError,
)

pytestmark = pytest.mark.torch


class Odd(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.laguerre_polynomial_l(x, x) + torch.special.laguerre_polynomial_l(x * 2, x)
        z = torch.linalg.eigvals(x).real
        return y.sum() + z.sum() + torch.histc(x, 5).sum()


def message(error: type[AutoshardError], *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        _ = ash.from_torch(*args, **kwargs).traced
    return str(caught.value)


def test_all_unsupported_operators_are_told_at_once_with_counts_and_lines() -> None:
    told = message(ShapeError, Odd(), (torch.randn(4, 4),))
    assert told.startswith("cannot import this program: autoshard has no operators for\n")
    here = next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "special.laguerre" in line)
    assert (
        "\n  aten.special_laguerre_polynomial_l.default (2 times, first at "
        f"tests/frontends/test_torch_errors.py:{here})\n" in told
    )
    assert re.search(
        rf"\n  aten\.\w*eig\w*\.default \(once at tests/frontends/test_torch_errors.py:{here + 1}\)\n", told
    )
    assert "histc without bounds takes them from the data; give min and max (once at" in told
    assert told.endswith("\nLeave them out of the module, or say them with other functions of torch")


def test_sizes_that_depend_on_the_data_cannot_be_imported() -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0]

    told = message(ShapeError, Masked(), (torch.randn(4, 4),))
    assert "it returns index at tests/frontends/test_torch_errors.py:58, whose size depends on the data" in told


def test_dynamic_shapes_name_the_input_and_the_dim() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.randn(6, 4),), dynamic_shapes=({0: batch},))
    told = message(ShapeError, program)
    assert told.startswith("cannot import a program with dynamic shapes: dim 0 of input input (")
    assert "2 to 64). Export it without dynamic_shapes, for the sizes that it is to be planned for" in told


def test_what_is_no_model(tmp_path: Path) -> None:
    assert message(ParseError, 7) == "from_torch takes a torch.nn.Module, an ExportedProgram or a .pt2 file, not int"
    assert "there is no such file" in message(ParseError, tmp_path / "none.pt2")
    (tmp_path / "bad.pt2").write_text("nothing")
    assert message(ParseError, tmp_path / "bad.pt2").startswith(f"cannot read {tmp_path / 'bad.pt2'} as an exported")
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.randn(6, 4),))
    told = message(ParseError, program, (torch.randn(6, 4),))
    assert told == "from_torch: an exported program was exported with its example arguments; leave args and kwargs out"


def test_what_torch_cannot_capture_keeps_its_reason() -> None:
    told = message(ParseError, torch.nn.Linear(4, 3), (torch.randn(6, 5),))
    assert told.startswith("torch.export cannot capture Linear for these arguments: ") and "[6, 5] X [4, 3]" in told


def test_a_result_that_torch_does_not_know_is_told_with_the_way_out() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=4, vocab_size=9, bos_token_id=0, eos_token_id=0)
    told = message(ParseError, GPT2LMHeadModel(config), (torch.zeros((2, 4), dtype=torch.long),))
    assert "DynamicCache" in told and told.endswith("`config.use_cache = False` or kwargs={'use_cache': False}")


def test_training_needs_a_loss_that_is_there() -> None:
    x = (torch.randn(6, 4),)
    sgd = lambda params: nn.SGD(params, 0.1)  # noqa: E731
    told = message(GraphError, torch.nn.Linear(4, 3), x, optimizer=sgd)
    assert (
        told
        == "from_torch: an optimizer needs a loss: a path such as 'loss', 'output' for the whole result, or a function"
    )
    told = message(UnknownNameError, torch.nn.Linear(4, 3), x, loss="output.loss", optimizer=sgd)
    assert "loss 'output.loss': the model's result has no 'loss'; it has: Tensor" in told


def test_a_model_takes_the_tensors_that_it_was_exported_for() -> None:
    model = ash.from_torch(torch.nn.Linear(4, 3), (torch.randn(6, 4),))
    with pytest.raises(GraphError, match=r"Linear takes 1 tensors \(input: f32\[6, 4\]\), but got 2"):
        model.construct(1, 2)


def test_torch_is_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import autoshard.frontends.torch.export as export

    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(
        RuntimeSetupError, match=r"needs torch, which the extra torch brings: pip install 'autoshard\[t"
    ):
        ash.from_torch(torch.nn.Linear(4, 3), (torch.randn(6, 4),))


def test_importing_autoshard_imports_no_torch() -> None:
    code = "import autoshard, autoshard.frontends, sys; autoshard.from_torch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_asks_for_values_is_told_with_its_line_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if (x > 0).all():
                return x.sum()
            return x

    class Solved(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.lstsq(x, x).solution

    class Counted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.bincount(x)

    told = message(ParseError, Branch(), (torch.randn(4, 4),))
    assert re.search(r"cannot capture Branch .* at tests/frontends/test_torch_errors.py:\d+", told)
    assert told.endswith("say it by torch.where or torch.cond, with fixed sizes") and "TORCH_LOGS" not in told
    told = message(ParseError, Solved(), (torch.randn(4, 4),))
    assert "how large the results of aten.linalg_lstsq.default are depends on the data; say it with other func" in told
    told = message(ParseError, Counted(), (torch.ones(3, dtype=torch.int64),))
    assert "the number of bins of torch.bincount depends on the data; give `minlength`, a number above" in told
    assert capfd.readouterr() == ("", "")
