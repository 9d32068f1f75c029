"""Training steps as one graph: equal to optimizers written by hand in numpy, states written back, errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autoshard import nn, optim
from autoshard.trace import Parameter, evaluate, set_seed, trace
from autoshard.transform import gradient, train_step
from autoshard.util.errors import ContextError, GraphError
from tests.trace.models import FFN, Language

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 6)), RNG.normal(size=(24, 4))
Arrays = dict[str, np.ndarray]


def gradients_by_hand(p: Arrays) -> tuple[float, Arrays]:
    """Loss and gradients of the 6-10-4 network under the mean squared error."""
    before = X @ p["dense1.weight"] + p["dense1.bias"]
    hidden = np.maximum(before, 0)
    error = hidden @ p["dense2.weight"] + p["dense2.bias"] - Y
    slope = 2 * error / error.size
    back = slope @ p["dense2.weight"].T * (before > 0)
    grads = {"dense1.weight": X.T @ back, "dense1.bias": back.sum(0)}
    grads |= {"dense2.weight": hidden.T @ slope, "dense2.bias": slope.sum(0)}
    return float((error**2).mean()), grads


def momentum_by_hand(rate: Callable[[int], float], momentum: float, decay: float = 0.0, nesterov: bool = False):
    def step(t: int, p: np.ndarray, g: np.ndarray, state: Arrays) -> np.ndarray:
        g = g + decay * p
        state["m"] = momentum * state.get("m", 0) + g
        return p - rate(t) * (g + momentum * state["m"] if nesterov else state["m"])

    return step


def adam_by_hand(rate: float, decay: float = 0.0, decoupled: bool = False, beta1=0.9, beta2=0.999, eps=1e-8):
    def step(t: int, p: np.ndarray, g: np.ndarray, state: Arrays) -> np.ndarray:
        g = g if decoupled else g + decay * p
        state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
        state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
        m, v = state["m"] / (1 - beta1 ** (t + 1)), state["v"] / (1 - beta2 ** (t + 1))
        return p - rate * (m / (np.sqrt(v) + eps) + (decay * p if decoupled else 0))

    return step


CASES = {
    "sgd": (lambda p: nn.SGD(p, 0.1), momentum_by_hand(lambda t: 0.1, 0.0)),
    "sgd_decay": (lambda p: nn.SGD(p, 0.1, weight_decay=0.02), momentum_by_hand(lambda t: 0.1, 0.0, 0.02)),
    "sgd_momentum": (
        lambda p: nn.SGD(p, 0.1, 0.8, nesterov=True),
        momentum_by_hand(lambda t: 0.1, 0.8, 0.0, True),
    ),
    "momentum": (lambda p: nn.Momentum(p, 0.05, 0.9), momentum_by_hand(lambda t: 0.05, 0.9)),
    "nesterov": (
        lambda p: nn.Momentum(p, 0.05, 0.9, 0.01, use_nesterov=True),
        momentum_by_hand(lambda t: 0.05, 0.9, 0.01, True),
    ),
    "rates": (
        lambda p: nn.Momentum(p, [0.25, 0.125], 0.5),
        momentum_by_hand(lambda t: [0.25, 0.125][min(t, 1)], 0.5),
    ),
    "schedule": (
        lambda p: nn.SGD(p, lambda step: 0.5 / (step + 2)),
        momentum_by_hand(lambda t: float(np.float32(0.5) / np.float32(t + 2)), 0.0),
    ),
    "adam": (lambda p: optim.Adam(p, 0.01), adam_by_hand(0.01)),
    "adam_decay": (lambda p: optim.Adam(p, 0.01, weight_decay=0.1), adam_by_hand(0.01, 0.1)),
    "adamw": (lambda p: nn.AdamW(p, 0.01), adam_by_hand(0.01, 0.01, True)),
}


@pytest.mark.parametrize("make, by_hand", CASES.values(), ids=CASES)
def test_equals_the_optimizer_by_hand(make, by_hand) -> None:
    net = FFN()
    mine = {name: parameter.data.copy() for name, parameter in net.parameters_dict().items()}
    states: dict[str, Arrays] = {name: {} for name in mine}
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), make(net.trainable_params()), X, Y)
    losses = []
    for t in range(12):
        want, grads = gradients_by_hand(mine)
        mine = {name: by_hand(t, value, grads[name], states[name]) for name, value in mine.items()}
        losses.append(float(step(X, Y)))
        np.testing.assert_allclose(losses[-1], want, rtol=1e-7)
    assert losses[-1] < losses[0]
    for name, parameter in net.parameters_dict().items():
        np.testing.assert_allclose(parameter.data, mine[name], rtol=1e-6, atol=1e-8, err_msg=name)


def test_the_optimizer_works_on_arrays_too() -> None:
    first, second = FFN(), FFN()
    step = train_step(nn.WithLossCell(first, nn.MSELoss()), optim.Adam(first.trainable_params(), [0.1, 0.05]), X, Y)
    optimizer = optim.Adam(second.trainable_params(), [0.1, 0.05])
    for _ in range(3):
        step(X, Y)
        _, grads = gradients_by_hand({name: one.data for name, one in second.parameters_dict().items()})
        optimizer([grads[one.name] for one in second.trainable_params()])
    for one, other in zip(first.get_parameters(), second.get_parameters(), strict=True):
        np.testing.assert_allclose(one.data, other.data, rtol=1e-6, atol=1e-9)


def test_one_graph_with_forward_gradient_and_update() -> None:
    net = FFN()
    net.dense1.matmul.shard(((2, 1), (1, 4)))
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), optimizer, X, Y)
    graph = step.graph
    names = [value.name for value in graph.inputs]
    assert names[:2] == ["data0", "data1"] and graph.roles == ("data",) * 2 + ("parameter",) * 4 + ("state",) * 4
    assert names[6:] == [f"moments.{name}" for name in net.parameters_dict()]
    assert list(optimizer.parameters_dict()) == names[6:]
    assert graph.outputs[0] is step.loss and len(graph.outputs) == 9
    assert sorted(graph.updates.values()) == list(range(2, 10))
    for out, into in graph.updates.items():
        assert graph.outputs[out].type == graph.inputs[into].type
    update = graph.node("update.dense1.weight")
    assert update.op.name == "ApplyMomentum" and graph.tied[update.results[0]].name == "dense1.weight"
    assert {value.name for value in step.gradients} == set(net.parameters_dict())
    assert [node.name for node in step.traced.annotations] == ["dense1.matmul"]
    assert next(iter(step.traced.annotations)) in graph.nodes
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    assert step.untouched == ()


def test_state_is_written_back_and_can_be_loaded() -> None:
    def fresh() -> tuple[FFN, nn.Adam]:
        net = FFN()
        return net, optim.Adam(net.trainable_params(), 0.02)

    net, optimizer = fresh()
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), optimizer, X, Y)
    step(X, Y), step(X, Y)
    assert optimizer.global_step is not None and optimizer.global_step.data == 2
    saved = {name: one.data.copy() for name, one in (net.parameters_dict() | optimizer.parameters_dict()).items()}
    again, other = fresh()
    for name, one in (again.parameters_dict() | other.parameters_dict()).items():
        one.set_data(saved[name])
    resumed = train_step(nn.WithLossCell(again, nn.MSELoss()), other, X, Y)
    assert [float(step(X, Y)) for _ in range(3)] == [float(resumed(X, Y)) for _ in range(3)]


def test_groups_have_settings_of_their_own() -> None:
    net = FFN()
    start = {name: one.data.copy() for name, one in net.parameters_dict().items()}
    weights = [one for one in net.trainable_params() if "bias" not in one.name]
    biases = [one for one in net.trainable_params() if "bias" in one.name]
    groups = [{"params": weights, "weight_decay": 0.5}, {"params": biases, "lr": 0.0}]
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(groups, 0.1), X, Y)
    _, grads = gradients_by_hand(start)
    step(X, Y)
    np.testing.assert_array_equal(net.dense1.bias.data, start["dense1.bias"])
    want = start["dense1.weight"] - 0.1 * (grads["dense1.weight"] + 0.5 * start["dense1.weight"])
    np.testing.assert_allclose(net.dense1.weight.data, want, rtol=1e-12)


def test_a_transformer_with_dropout_learns() -> None:
    set_seed(1)
    net = Language(1, dropout=0.1, dtype="f32").set_train()
    ids = RNG.integers(0, 24, (4, 6)).astype(np.int32)
    labels = (ids % 10).astype(np.int32)
    optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.02)
    step = train_step(nn.WithLossCell(net, nn.TokenLoss()), optimizer, ids, labels)
    losses = [float(step(ids, labels)) for _ in range(25)]
    assert np.mean(losses[-3:]) < 0.3 * losses[0]
    counters = [one for name, one in net.parameters_dict().items() if name.endswith("counter")]
    assert len(counters) == 3 and all(one.data == 25 for one in counters)
    assert step.graph.outputs[0].type.dtype.name == "f32"


def test_a_loss_per_row_is_summed_for_the_gradient() -> None:
    net = FFN()
    labels = np.eye(4)[RNG.integers(0, 4, 24)]
    loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits())
    step = train_step(loss, nn.SGD(net.trainable_params(), 0.01), X, labels)
    assert step.loss.type.shape == (24,)
    traced = trace(lambda x, y: loss(x, y).sum(), X, labels)
    full, grads = gradient(traced.graph, traced.graph.outputs[0], list(traced.parameters))
    want = evaluate(full, traced.inputs(X, labels))[1:]
    before = {value.name: one.data for value, one in traced.parameters.items()}
    assert step(X, labels).shape == (24,)
    for (value, one), grad in zip(traced.parameters.items(), want, strict=True):
        np.testing.assert_allclose(one.data, before[value.name] - 0.01 * grad, rtol=1e-10, atol=1e-12)


def test_further_results_and_unused_parameters() -> None:
    net, spare = FFN(), Parameter(np.ones(3), "spare")

    def with_logits(x, y):
        logits = net(x)
        return ((logits - y) ** 2).mean(), {"logits": logits}

    step = train_step(with_logits, nn.SGD([*net.trainable_params(), spare], 0.1), X, Y)
    want = net(X)
    _, more = step(X, Y)
    np.testing.assert_array_equal(more["logits"], want)
    assert step.untouched == (spare,) and step.graph.name == "with_logits"


def test_mistakes() -> None:
    net = FFN()
    params = net.trainable_params()
    for make, message in [
        (lambda: nn.SGD([], 0.1), "SGD: no parameters"),
        (lambda: nn.SGD([*params, params[0]], 0.1), "dense1.weight is given twice"),
        (lambda: optim.Adam([np.ones(3)]), "which is no Parameter; pass net.trainable_params"),
        (lambda: nn.Momentum(params, -0.1, 0.9), "learning rate -0.1"),
        (lambda: nn.Momentum(params, [], 0.9), r"learning rate \[\]"),
        (lambda: nn.Momentum(params, 0.1, 1.5), "momentum is 1.5"),
        (lambda: nn.SGD(params, 0.1, nesterov=True), "nesterov needs a momentum"),
        (lambda: optim.Adam(params, beta2=1.0), "beta2 is 1.0"),
        (lambda: nn.SGD([{"params": params, "rate": 3}], 0.1), "not params, rate"),
    ]:
        with pytest.raises(ContextError, match=message):
            make()
    with pytest.raises(GraphError, match="2 gradients for 4 parameters"):
        nn.SGD(params, 0.1)([X, X])
    with pytest.raises(GraphError, match="uses none of the parameters"):
        train_step(lambda x: x.sum(), nn.SGD(params, 0.1), X)
    with pytest.raises(GraphError, match="not of a float type"):
        train_step(lambda x: net(x).argmax(), nn.SGD(params, 0.1), X)
