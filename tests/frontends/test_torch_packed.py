"""Sequences packed by their lengths, and recurrent modules over them, trained with torch's numbers."""

from __future__ import annotations

from typing import Any

import pytest

import autoshard
from tests.frontends.torch_steps import check_step

torch = pytest.importorskip("torch")
F = torch.nn.functional
rnn = torch.nn.utils.rnn
pytestmark = pytest.mark.torch

LENGTHS = [2, 4, 1]


class Stacked(torch.nn.Module):
    """Both directions, layers, states that are given and those at the ends; packed anew by the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = torch.nn.LSTM(3, 4, 2, bidirectional=True), torch.nn.GRU(8, 2)
        self.state = torch.nn.Parameter(torch.randn(4, 1, 4))

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = rnn.pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False)
        state = self.state.expand(-1, x.shape[1], -1).contiguous()
        packed, (last, inner) = self.lstm(packed, (state, state.sin()))
        packed = rnn.PackedSequence(packed.data.tanh(), *packed[1:])
        found, ends = self.gru(packed)
        padded, counts = rnn.pad_packed_sequence(found, padding_value=0.5)
        means = padded.sum(0) / counts[:, None]
        return {"loss": last.square().sum() + inner.sin().sum() + (means * ends[0]).sum()}


class Words(torch.nn.Module):
    """A loss of packed words by packed labels, as captions are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cells = (
            torch.nn.Embedding(7, 3),
            torch.nn.LSTM(3, 5, proj_size=3, bias=False, batch_first=True),
        )

    def forward(self, words: Any) -> Any:
        lengths = sorted(LENGTHS, reverse=True)
        packed = rnn.pack_padded_sequence(self.words(words), lengths, batch_first=True)
        labels = rnn.pack_padded_sequence(words, lengths, batch_first=True).data
        logits = self.cells(packed)[0].data @ self.words.weight.T
        return {"loss": F.cross_entropy(logits, labels)}


class Plain(torch.nn.Module):
    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.cells, self.length = torch.nn.RNN(3, 2, nonlinearity="relu"), length

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = self.cells(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))[0]
        return rnn.pad_packed_sequence(packed, total_length=self.length)[0]


def test_recurrent_modules_over_packed_sequences_learn_as_in_torch() -> None:
    torch.manual_seed(0)
    check_step(Stacked(), (torch.randn(4, 3, 3), torch.tensor(LENGTHS)), "adamw", steps=2, mesh="d=2")


def test_losses_of_packed_words_learn_as_in_torch() -> None:
    torch.manual_seed(0)
    check_step(Words(), (torch.randint(0, 7, (3, 4)),), steps=2, mesh="d=3")


@pytest.mark.parametrize("length", [None, 6])
def test_steps_that_torch_does_not_make_are_not_numbers(length: int | None) -> None:
    torch.manual_seed(0)
    module, args = Plain(length), (torch.randn(5, 3, 3), torch.tensor(LENGTHS))
    model = autoshard.from_torch(module, args)
    found = torch.from_numpy(autoshard.plan(model, mesh="d=3").run(*model.arrays(*args)))
    wanted = module(*args).detach()
    torch.testing.assert_close(found[: len(wanted)], wanted, rtol=1e-5, atol=1e-6)
    assert found[len(wanted) :].isnan().all() and len(found) == (length or 5)
