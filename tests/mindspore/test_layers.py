"""Recurrent layers, attention, transposed convolutions and images under MindSpore's names: torch's numbers, where torch
has them, and split over ranks those of the whole.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import autoshard as ash
import autoshard.mindspore as ms
from autoshard.mindspore import nn, ops
from autoshard.transform import train_step
from autoshard.util.errors import GraphError, ShapeError, UnknownNameError

RNG = np.random.default_rng(11)
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def f(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def taken_up(net: nn.Cell, module: Any) -> Any:
    """The torch module, whose numbers the net now has."""
    own = net.parameters_dict()
    for name, value in module.state_dict().items():
        name = name.replace("linear1", "dense1").replace("linear2", "dense2")
        if "norm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        own[name].set_data(value.numpy())
    return module


def flat(result: Any) -> list[Any]:
    return [one for part in result for one in flat(part)] if isinstance(result, tuple | list) else [result]


def held_to(net: nn.Cell, module: Any, *inputs: Any, **given: Any) -> None:
    """What net gives is what a torch module of the same numbers gives."""
    import torch

    def theirs_of(one: Any) -> Any:
        if isinstance(one, tuple):
            return tuple(map(theirs_of, one))
        return torch.tensor(one) if isinstance(one, np.ndarray) else one

    taken_up(net, module)
    found = flat(net(*inputs, **given))
    kwargs = {name: theirs_of(one) for name, one in given.items()}
    want = flat(module(*map(theirs_of, inputs), **kwargs))
    for mine, other in zip(found, want, strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), **CLOSE)


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "both", "first"), list(product(("LSTM", "GRU", "RNN"), (False, True), (False, True))))
def test_recurrent_layers_are_those_of_torch(kind: str, both: bool, first: bool) -> None:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    net = getattr(nn, kind)(5, 6, 2, True, first, 0.0, both)
    module = getattr(torch.nn, kind)(5, 6, 2, batch_first=first, bidirectional=both)
    x, states = f(4, 7, 5) if first else f(7, 4, 5), (f(2 * (1 + both), 4, 6), f(2 * (1 + both), 4, 6))
    hx = states if kind == "LSTM" else states[0]
    held_to(net, module, x, hx)
    lengths = np.array([7, 3, 1, 5], np.int32)
    packed = pack_padded_sequence(torch.tensor(x), torch.tensor(lengths), first, enforce_sorted=False)
    outputs, last = module(packed)
    padded, _ = pad_packed_sequence(outputs, first)
    for mine, other in zip(flat(net(x, None, lengths)), flat((padded, last)), strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), **CLOSE)
    assert len(net.w_ih_list) == len(net.b_hh_list) == 2 * (1 + both)


@pytest.mark.torch
def test_recurrent_cells_and_further_settings_are_those_of_torch() -> None:
    import torch

    x, h, c = f(4, 5), f(4, 6), f(4, 6)
    for kind, state in (("LSTMCell", (h, c)), ("GRUCell", h), ("RNNCell", h)):
        held_to(getattr(nn, kind)(5, 6), getattr(torch.nn, kind)(5, 6), x, state)
    held_to(
        nn.RNN(5, 6, has_bias=False, nonlinearity="relu"), torch.nn.RNN(5, 6, 1, "relu", bias=False), f(7, 4, 5)
    )  # fmt: skip
    assert nn.GRU(5, 6, 1, False).b_ih_list == ()


def test_what_recurrent_layers_cannot_take_names_what_they_can() -> None:
    net = nn.LSTM(5, 6, 2, batch_first=True)
    with pytest.raises(ShapeError, match=r"LSTM: x is \(4, 7, 3\); it is \[batch, steps, 5\]"):
        net(f(4, 7, 3))
    with pytest.raises(ShapeError, match=r"hx has \(1, 4, 6\) and \(2, 4, 6\); it is a tuple of 2 tensors \(2, 4, 6\)"):
        net(f(4, 7, 5), (f(1, 4, 6), f(2, 4, 6)))
    with pytest.raises(ShapeError, match=r"seq_length is \(3,\); .* the 4 sequences"):
        net(f(4, 7, 5), None, np.ones(3, np.int32))
    with pytest.raises(ShapeError, match="hidden_size is 0"):
        nn.GRU(5, 0)
    with pytest.raises(ShapeError, match=r"dropout is 1.0; .* below 1"):
        nn.GRU(5, 6, dropout=1.0)
    with pytest.raises(ShapeError, match="nonlinearity is 'selu'; it is 'tanh' or 'relu'"):
        nn.RNN(5, 6, nonlinearity="selu")


@pytest.mark.torch
@pytest.mark.parametrize("first", [False, True])
def test_attention_is_that_of_torch(first: bool) -> None:
    import torch

    net, module = (kind(8, 2, batch_first=first) for kind in (nn.MultiheadAttention, torch.nn.MultiheadAttention))
    q, k, v = (f(3, 4, 8), f(3, 5, 8), f(3, 5, 8)) if first else (f(4, 3, 8), f(5, 3, 8), f(5, 3, 8))
    away = np.array([[0, 0, 0, 0, 1], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]], bool)
    held_to(net, module, q, k, v, key_padding_mask=away, attn_mask=np.triu(np.ones((4, 5), bool), 2))
    held_to(net, module, q, k, v, attn_mask=f(6, 4, 5), average_attn_weights=False)
    assert len(net(q, k, v, need_weights=False)) == 1
    wide, of_widths = (kind(8, 2, kdim=5, vdim=6) for kind in (nn.MultiheadAttention, torch.nn.MultiheadAttention))
    held_to(wide, of_widths, f(4, 8), f(5, 5), f(5, 6))
    with pytest.raises(ShapeError, match=r"attn_mask is \(5, 4\); it is \(4, 5\) or \(6, 4, 5\)"):
        net(q, k, v, attn_mask=np.ones((5, 4), bool))


@pytest.mark.torch
@pytest.mark.parametrize(("before", "activation"), list(product((False, True), ("relu", "gelu"))))
def test_transformer_layers_are_those_of_torch(before: bool, activation: str) -> None:
    import torch

    x, memory, later = f(4, 3, 8), f(4, 3, 8), np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    for name, inputs in (("TransformerEncoderLayer", (x, later)), ("TransformerDecoderLayer", (x, memory, later))):
        net, module = (
            getattr(page, name)(8, 2, 12, 0.0, activation, norm_first=before) for page in (nn, torch.nn)
        )  # fmt: skip
        held_to(net, module, *inputs)
    nets, modules = (
        page.Transformer(8, 2, 2, 1, 12, 0.0, activation, norm_first=before) for page in (nn, torch.nn)
    )  # fmt: skip
    held_to(nets, modules, x, f(5, 3, 8))
    assert isinstance(nets.encoder, nn.TransformerEncoder) and isinstance(nets.decoder, nn.TransformerDecoder)
    assert len(nets.encoder.layers) == 2 and nets.encoder.layers[0] is not nets.encoder.layers[1]
    with pytest.raises(ShapeError, match="activation is 'elu'; it is 'relu', 'gelu'"):
        nn.TransformerEncoderLayer(8, 2, activation="elu")


@pytest.mark.torch
@pytest.mark.parametrize(("kernel", "stride"), list(product((2, 3), (1, 2, 3))))
def test_transposed_convolutions_are_those_of_torch(kernel: int, stride: int) -> None:
    import torch

    for pad, dilation, group in product((0, 1), (1, 2), (1, 2)):
        net = nn.Conv2dTranspose(4, 6, kernel, stride, "pad", pad, 0, dilation, group, True)
        held_to(net, torch.nn.ConvTranspose2d(4, 6, kernel, stride, pad, 0, group, True, dilation), f(2, 4, 5, 7))
    line, of_line = nn.Conv1dTranspose(4, 6, kernel, stride, "pad", 1), torch.nn.ConvTranspose1d(
        4, 6, kernel, stride, 1, bias=False
    )  # fmt: skip
    line.weight.set_data(of_line.weight.detach().numpy()[:, :, None])
    x = f(2, 4, 7)
    np.testing.assert_allclose(line(x), of_line(torch.tensor(x)).detach().numpy(), **CLOSE)
    held_to(nn.Conv3d(4, 6, kernel, stride, "pad", 1, group=2, has_bias=True),
            torch.nn.Conv3d(4, 6, kernel, stride, 1, groups=2), f(2, 4, 3, 5, 7))  # fmt: skip


@pytest.mark.parametrize(("mode", "kernel", "stride"), list(product(("same", "valid"), (2, 3), (1, 2, 3))))
def test_a_transposed_convolution_is_the_gradient_of_a_convolution(mode: str, kernel: int, stride: int) -> None:
    back, forth = nn.Conv2dTranspose(4, 6, kernel, stride, mode), nn.Conv2d(6, 4, kernel, stride, mode)
    forth.weight.set_data(back.weight.asnumpy())
    g = f(2, 4, 5, 7)
    found = back(g)
    more = 0 if mode == "same" else max(kernel - stride, 0)
    assert found.shape == (2, 6, 5 * stride + more, 7 * stride + more)
    slope = ms.grad(lambda x: (forth(x) * g).sum())(f(*found.shape))
    np.testing.assert_allclose(found, slope, **CLOSE)


def test_output_padding_is_zeros_as_in_mindspore() -> None:
    net = nn.Conv2dTranspose(3, 4, 3, 2, "pad", 1, 1)
    found = net(f(1, 3, 4, 5))
    assert found.shape == (1, 4, 8, 10) and not found[:, :, -1].any() and not found[..., -1].any()
    with pytest.raises(ShapeError, match=r"output_padding is 2; it is 0, or .* below \(2, 2\)"):
        nn.Conv2dTranspose(3, 4, 3, 2, "pad", 1, 2)
    with pytest.raises(ShapeError, match="cannot become"):
        ops.Conv2DTranspose(3, 2)(f(1, 3, 4, 5), f(3, 4, 2, 2), (1, 4, 9, 6))


@pytest.mark.torch
def test_other_sizes_are_those_of_torch() -> None:
    import torch
    from torch.nn import functional as theirs

    x = f(2, 4, 5, 6)
    for given in (
        {"size": (7, 3)}, {"scale_factor": 2}, {"size": (7, 9), "mode": "bilinear"}, {"size": (2, 4), "mode": "area"},
        {"size": (7, 9), "mode": "bilinear", "align_corners": True},
        {"scale_factor": 1.5, "recompute_scale_factor": True},
    ):  # fmt: skip
        want = theirs.interpolate(torch.tensor(x), **given).numpy()
        np.testing.assert_allclose(nn.Upsample(**given)(x), want, **CLOSE)
        np.testing.assert_allclose(ops.upsample(x, **given), want, **CLOSE)
    for sizes in ((3, 4), (None, 1), 2):
        want = theirs.adaptive_avg_pool2d(torch.tensor(x), sizes).numpy()
        np.testing.assert_allclose(nn.AdaptiveAvgPool2d(sizes)(x), want, **CLOSE)
    with pytest.raises(ShapeError, match=r"scale_factor 1.5 of \(5, 6\) makes \[7.5, 9.0\]"):
        ops.interpolate(x, scale_factor=1.5)
    with pytest.raises(ShapeError, match="mode is 'bicubic'"):
        ops.interpolate(x, 4, mode="bicubic")


@pytest.mark.torch
def test_ctc_is_that_of_torch() -> None:
    import torch

    x = torch.log_softmax(torch.tensor(f(9, 3, 5)), -1)
    labels = np.array([[1, 2, 2, 1], [3, 1, 4, 2], [4, 1, 1, 1]], np.int32)
    lengths = np.array([9, 8, 7], np.int32), np.array([3, 4, 1], np.int32)
    for reduction in ("none", "mean", "sum"):
        given = map(torch.tensor, (labels, *lengths))
        want = torch.nn.functional.ctc_loss(x, *given, reduction=reduction)
        np.testing.assert_allclose(nn.CTCLoss(reduction=reduction)(x.numpy(), labels, *lengths), want, rtol=1e-5)
    alone = ops.ctc_loss(x[:, 0].numpy(), labels[0], 9, 3, reduction="none")
    np.testing.assert_allclose(alone, nn.CTCLoss(reduction="none")(x.numpy(), labels, *lengths)[0], rtol=1e-6)


def test_dropouts_of_channels_drop_whole_ones() -> None:
    for kind, space in ((nn.Dropout1d, (3,)), (nn.Dropout2d, (3, 2)), (nn.Dropout3d, (3, 2, 2))):
        net, ones = kind(0.25), np.ones((40, 50, *space), np.float32)
        assert net(ones) is ones
        net.set_train()
        first, second = (np.asarray(net(ones)).reshape(2000, -1) for _ in range(2))
        assert (first == first[:, :1]).all() and set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
        assert 0.2 < (first == 0).mean() < 0.3 and (first != second).any()
        assert not kind(1.0).set_train()(ones).any()
    with pytest.raises(ShapeError, match=r"Dropout2d: x is \(4, 5\)"):
        nn.Dropout2d()(f(4, 5))


def test_maps_and_functions_by_type() -> None:
    scaled: Any = ops.MultitypeFuncGraph("scaled")

    @scaled.register("Number", "Tensor")
    def _(factor: float, one: Any) -> Any:
        return one * factor

    @scaled.register("Number", "Number")
    def _(factor: float, one: float) -> float:
        return one + factor

    x = f(2, 3)
    found = ops.HyperMap()(ops.partial(scaled, 2), ((x, 3), (x,)))
    np.testing.assert_allclose(found[0][0], 2 * x)
    assert found[0][1] == 5 and ops.Map()(lambda x, y: x + y, (1, 2), (10, 20)) == (11, 22)
    traced = ash.trace(lambda x: ops.HyperMap(ops.partial(scaled, 2))((x, x + 1)), x)
    np.testing.assert_allclose(traced(x)[1], 2 * (x + 1))
    with pytest.raises(GraphError, match=r"'scaled' at .*test_layers.py:\d+ is called with \(str, Tensor\); it is reg"):
        scaled("a", x)
    with pytest.raises(UnknownNameError, match="there is no type 'Tesnor'; did you mean 'Tensor'"):
        scaled.register("Tesnor")(lambda x: x)
    with pytest.raises(GraphError, match=r"rows .* of one length; their lengths are \[2, 1\]"):
        ops.Map()(max, (1, 2), (3,))


class Tagger(nn.Cell):
    """Tags of padded sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(30, 8), nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.drop, self.tags = nn.Dropout1d(0.25), nn.Dense(12, 6)

    def construct(self, x: Any, lengths: Any) -> Any:
        return self.tags(self.drop(self.rnn(self.embedding(x), seq_length=lengths)[0]))


class Translator(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.transformer = nn.Embedding(30, 8), nn.Transformer(8, 4, 1, 1, 12, 0.0, batch_first=True)
        self.words = nn.Dense(8, 6)

    def construct(self, x: Any, lengths: Any) -> Any:
        away = ops.greater_equal(np.arange(5, dtype=np.int32), ops.expand_dims(lengths, 1))
        e = self.embedding(x)
        return self.words(self.transformer(e, e, src_key_padding_mask=away, memory_key_padding_mask=away))


class Painter(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm, self.up = nn.Conv2d(5, 8, 3, 2), nn.InstanceNorm2d(8), nn.Conv2dTranspose(8, 6, 4, 2)
        self.drop = nn.Dropout2d(0.5)

    def construct(self, x: Any, lengths: Any) -> Any:
        image = ops.one_hot(x, 30, 1.0, 0.0).reshape(8, 5, 5, 6)
        y = self.up(self.drop(self.norm(self.down(image))))
        return ops.interpolate(y, (1, 5), mode="bilinear").reshape(8, 6, 5).transpose(0, 2, 1)


@pytest.mark.parametrize("make", [Tagger, Translator, Painter])
def test_trained_on_ranks_they_become_what_they_become_on_one(make: Any) -> None:
    x, tags = RNG.integers(0, 30, (8, 5)).astype(np.int32), RNG.integers(0, 6, (8, 5)).astype(np.int32)
    lengths = RNG.integers(1, 6, 8).astype(np.int32)

    def trained(**given: Any) -> list[np.ndarray]:
        ms.set_seed(5)
        net = make()
        loss = WithLoss(net).set_train()
        step = train_step(loss, nn.Momentum(net.trainable_params(), 0.5, 0.9), x, lengths, tags)
        planned = ash.plan(step, **given)
        return [
            *(np.asarray(planned.run(x, lengths, tags)) for _ in range(2)),
            *(one.asnumpy() for one in net.get_parameters()),
        ]

    for one, other in zip(trained(mesh="dp=2 tp=3"), trained(devices=1), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


class WithLoss(nn.Cell):
    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Any, lengths: Any, tags: Any) -> Any:
        return ops.cross_entropy(self.net(x, lengths).reshape(-1, 6), tags.reshape(-1))


def test_former_modules_of_operators_have_their_names() -> None:
    from autoshard.mindspore.ops import composite, functional, operations

    assert composite.HyperMap is functional.HyperMap is ops.HyperMap and functional.partial is ops.partial
    assert composite.GradOperation is ops.GradOperation and operations.MatMul is ops.MatMul
    with pytest.raises(AttributeError, match="did you mean 'tuple_to_array'"):
        _ = functional.tuple_to_arry
    with pytest.raises(AttributeError, match="composite does not offer MindSpore's 'normal'"):
        _ = composite.normal


def test_a_table_is_looked_up_split_as_its_slice_mode_says() -> None:
    ids = RNG.integers(0, 12, (8, 5)).astype(np.int32)
    for mode, split in (("batch_slice", (1, 1)), ("table_row_slice", (4, 1)), ("table_column_slice", (1, 4))):
        net = nn.EmbeddingLookup(12, 8, slice_mode=mode)
        whole = net(ids)
        assert net.gather.in_strategy is None
        ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4)
        try:
            planned = ash.plan(net, (ids,), devices=4)
        finally:
            ms.reset_auto_parallel_context()
        (node,) = [one for one in planned.graph.nodes if one.op.name == "Gather"]
        assert planned.plan.strategy(node).in_strategy[0] == split
        np.testing.assert_array_equal(planned.run(ids), whole)
    with pytest.raises(ShapeError, match="slice_mode is 'field_slice'"):
        nn.EmbeddingLookup(12, 8, slice_mode="field_slice")


class Noisy(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.normal, self.even = ops.StandardNormal(), ops.UniformReal(3, 4)

    def construct(self, x: Any) -> Any:
        return x + self.normal(x.shape), self.even(x.shape)


def test_random_numbers_are_drawn_anew_and_alike_on_ranks() -> None:
    x = np.zeros((120, 100), np.float32)
    ms.set_seed(5)
    net = Noisy()
    normal, even = map(np.asarray, net(x))
    assert (
        abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03 and abs((np.abs(normal) < 1).mean() - 0.683) < 0.02
    )
    assert even.min() > 0 and even.max() < 1 and abs(even.mean() - 0.5) < 0.02
    assert (np.asarray(net(x)[0]) != normal).mean() > 0.99 and net.normal.counter.asnumpy() == 2
    ms.set_seed(5)
    planned = ash.plan(Noisy(), (x,), devices=4)
    np.testing.assert_allclose(planned.run(x)[0], normal, **CLOSE)
    with pytest.raises(AttributeError, match=r"MindSpore's 'standard_normal'; hold ops.StandardNormal\(\)"):
        _ = ops.standard_normal


def test_a_learning_rate_of_one_number_may_have_a_dim() -> None:
    class Warm(nn.learning_rate_schedule.LearningRateSchedule):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.rate = ms.Tensor(np.full(size, 0.5, np.float32))

        def construct(self, step: Any) -> Any:
            return self.rate / (step + 1)

    def trained(rate: Any) -> np.ndarray:
        net = nn.Dense(3, 2, "ones", "zeros")
        step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.AdamWeightDecay(net.trainable_params(), rate))
        for _ in range(2):
            step(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))
        return net.weight.asnumpy()

    np.testing.assert_allclose(trained(Warm(1)), trained([0.5, 0.25]), **CLOSE)
    with pytest.raises(GraphError, match=r"its learning rate is of shape \(2,\); it is one number a step"):
        trained(Warm(2))
