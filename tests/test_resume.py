"""Model.save, Model.load and resuming: the same numbers as training that was never broken off, on any mesh."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import autoshard as ash
from autoshard import Model, nn, ops
from autoshard.mindspore import set_seed
from autoshard.mindspore.callbacks import TrainingError
from autoshard.mindspore.dataset import NumpySlicesDataset
from autoshard.mindspore.resume import Position
from autoshard.runtime.checkpoint import checkpoints, export_file, find, read_index
from autoshard.runtime.stored import Stored
from autoshard.util.errors import CheckpointError


class Net(nn.Cell):
    """12 -> 20 -> 6 with dropout, whose seed is that of the process, and a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.dense1 = nn.Dense(12, 20)
        self.dropout = nn.Dropout(0.3)
        self.scale = ash.Parameter(np.full(20, 1.5, np.float32), requires_grad=False)
        self.dense2 = nn.Dense(20, 6)
        self.mul = ops.Mul()

    def construct(self, x):
        return self.dense2(self.mul(self.dropout(ops.ReLU()(self.dense1(x))), self.scale))


def data() -> NumpySlicesDataset:
    random = np.random.default_rng(3)
    x, labels = random.normal(size=(48, 12)), np.eye(6)[random.integers(0, 6, 48)]
    return (
        NumpySlicesDataset((x.astype(np.float32), labels.astype(np.float32)), shuffle=False).shuffle(seed=8).batch(12)
    )


def model(seed: int, mesh: str = "dp=2 tp=2", rule: str = "adam", net: type = Net) -> Model:
    """A fresh one, whose first MatMul is split over the mesh: the rows over dp, the weight over the last axis."""
    set_seed(seed)
    ash.reset_auto_parallel_context()
    over = ash.Mesh.parse(mesh)
    ash.set_auto_parallel_context(parallel_mode="auto_parallel", full_batch=True, mesh=over, search_mode="factor")
    network, last = net(), over.axes[-1][1]
    network.dense1.matmul.shard(((over.devices // last, 1), (last, 1)))
    params = network.trainable_params()
    rates = np.linspace(0.05, 0.01, 12).tolist()
    optimizer = nn.Adam(params, 0.01, eps=1e-4) if rule == "adam" else nn.Momentum(params, rates, 0.9)
    return Model(network, nn.SoftmaxCrossEntropyWithLogits(reduction="mean"), optimizer)


def values(one: Model) -> dict[str, np.ndarray]:
    return {**{n: p.asnumpy() for n, p in one.network.parameters_dict().items()},
            **{n: p.asnumpy() for n, p in one.optimizer.parameters_dict().items()}}  # fmt: skip


def assert_equal(one: Model, other: Model) -> None:
    first, second = values(one), values(other)
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), name


@pytest.fixture(scope="module", params=["adam", "momentum"])
def unbroken(request, tmp_path_factory):
    """Three epochs of four steps in one go, a checkpoint after each step."""
    directory, history = tmp_path_factory.mktemp("saved"), ash.History()
    whole = model(0, rule=request.param)
    whole.train(3, data(), callbacks=[history, ash.ShardedCheckpoint(directory, keep=0)])
    return request.param, directory, whole, history.losses


@pytest.mark.parametrize("step", [1, 4, 6, 11, 12])
def test_resumed_training_gives_the_same_numbers(unbroken, step):
    """In the middle and at the end of an epoch; in a process that began with other values and other seeds."""
    rule, directory, whole, losses = unbroken
    again, later = model(5, rule=rule), ash.History()
    assert again.load(directory, step=step) == Position((step - 1) // 4 + 1, (step - 1) % 4 + 1, step)
    again.train(3, data(), callbacks=later, resume=True)
    assert later.losses == losses[step:]
    assert_equal(again, whole)


@pytest.mark.parametrize("mesh", ["dp=3 tp=2", "d=5", "d=1"])
def test_another_mesh_goes_on_from_the_same_values(unbroken, mesh):
    rule, directory, whole, losses = unbroken
    again, later = model(5, mesh, rule), ash.History()
    again.load(directory, step=12)
    assert_equal(again, whole)
    again = model(6, mesh, rule)
    again.load(directory, step=8)
    again.train(3, data(), callbacks=later, resume=True)
    np.testing.assert_allclose(later.losses, losses[8:], rtol=1e-4)


def test_training_reads_blocks_and_cells_when_asked(unbroken):
    """No rank holds the whole: training takes blocks from the files, and leaves the cells' values unread until sync."""
    rule, directory, _, _ = unbroken
    again = model(5, rule=rule)
    again.load(directory, step=2)

    class Watch(ash.Callback):
        unread = []

        def on_step_end(self, progress):
            kept = [(p.name, getattr(p.pending, "before", p.pending)) for p in again.network.get_parameters()]
            self.unread.append([name for name, one in kept if isinstance(one, Stored)])

    again.train(1, data(), callbacks=Watch(), resume=True)
    names = [p.name for p in again.network.get_parameters()]
    assert Watch.unread == [names, names]
    assert not any(p.pending for p in again.network.get_parameters())


def test_blocks_are_saved_while_training(unbroken):
    index = read_index(find(unbroken[1], 7))
    assert index.mesh == "dp=2 tp=2" and index.metadata["training"] == {"epoch": 2, "step": 3, "total_steps": 7}
    assert [len(index.tensors[name].blocks) for name in ("dense1.weight", "dense2.bias")] == [2, 1]
    states = [name for name in index.metadata["states"] if name.endswith(".dense1.weight")]
    assert states and all(len(index.tensors[name].blocks) == 2 for name in states)


def test_saved_after_training_and_kept(tmp_path):
    one = model(0)
    one.train(1, data(), callbacks=ash.ShardedCheckpoint(tmp_path, every=2, keep=1))
    assert checkpoints(tmp_path) == ["step-00000004"]
    assert one.save(tmp_path, keep=2).name == "step-00000004-2"
    other = model(9)
    other.load(tmp_path)
    assert_equal(one, other)


def test_removed_checkpoints_do_no_harm(tmp_path):
    """Training goes on after the checkpoint that it was loaded from is gone, untrained parameters included."""
    one = model(0)
    one.train(1, data(), callbacks=ash.ShardedCheckpoint(tmp_path, keep=1))
    scale = one.network.scale.asnumpy() * 0 + 7
    one.network.scale.set_data(scale)
    one.save(tmp_path, keep=1)
    other = model(1)
    other.load(tmp_path)
    other.train(3, data(), callbacks=ash.ShardedCheckpoint(tmp_path, keep=1), resume=True)
    assert (other.network.scale.asnumpy() == 7).all()


def test_parameters_alone_and_plain_files(tmp_path):
    one = model(0)
    one.train(1, data())
    one.save(tmp_path / "saved")
    names = export_file(tmp_path / "saved", tmp_path / "plain.safetensors")
    assert sorted(names) == sorted(one.network.parameters_dict())
    plain = load_file(tmp_path / "plain.safetensors")
    assert all((plain[name] == p.asnumpy()).all() for name, p in one.network.parameters_dict().items())
    for source in (tmp_path / "saved", tmp_path / "plain.safetensors"):
        other = model(4)
        before = {name: p.asnumpy() for name, p in other.optimizer.parameters_dict().items()}
        assert other.load(source, states=False) == Position()
        assert all((plain[name] == p.asnumpy()).all() for name, p in other.network.parameters_dict().items())
        assert all((before[name] == p.asnumpy()).all() for name, p in other.optimizer.parameters_dict().items())
    with pytest.raises(CheckpointError, match="another model: it has not global_step, moment1.dense1.bias"):
        model(4).load(tmp_path / "plain.safetensors")


def test_other_models_change_nothing(unbroken, tmp_path):
    class Wider(Net):
        def __init__(self):
            super().__init__()
            self.dense1 = nn.Dense(12, 24)

    class Plain(Net):
        def __init__(self):
            super().__init__()
            self.more = nn.Dense(3, 3)

    for kind, words in [(Wider, r"dense1.weight is f32\[20, 12\] in the checkpoint, the network has f32\[24, 12\]"),
                        (Plain, "another model: it has not .*more.weight")]:  # fmt: skip
        other = model(2, rule=unbroken[0], net=kind)
        before = values(other)
        with pytest.raises(CheckpointError, match=words):
            other.load(unbroken[1])
        assert all((array == before[name]).all() for name, array in values(other).items())
    with pytest.raises(CheckpointError, match="there is no checkpoint of step 77"):
        model(2, rule=unbroken[0]).load(unbroken[1], step=77)
    with pytest.raises(TrainingError, match="every is 0"):
        ash.ShardedCheckpoint(tmp_path, every=0)


def test_other_random_operators_are_another_model(tmp_path):
    class Twice(Net):
        def __init__(self):
            super().__init__()
            self.noise = ops.primitive_class(ops.dropout)(rate=0.5, seed=3)

    model(0).save(tmp_path)
    with pytest.raises(CheckpointError, match="drawn by dropout.dropout there, by dropout.dropout, noise here"):
        model(0, net=Twice).load(tmp_path)


def test_damage_is_told_when_the_values_are_read(tmp_path):
    one = model(0)
    path = one.save(tmp_path)
    (file,) = {block.file for tensor in read_index(path).tensors.values() for block in tensor.blocks}
    block = read_index(path).tensors["dense2.weight"].blocks[0]
    content = bytearray((path / file).read_bytes())
    content[block.start + 3] ^= 16
    (path / file).write_bytes(content)
    other = model(1)
    other.load(tmp_path)
    with pytest.raises(CheckpointError, match=f"{file} is damaged: tensor 'dense2.weight'"):
        other.train(1, data())


def test_bfloat16_goes_through_plain_files(tmp_path):
    import ml_dtypes

    from autoshard.runtime.checkpoint import import_files

    w = np.arange(12).astype(ml_dtypes.bfloat16).reshape(3, 4)
    save_file({"old.w": w, "old.skip": np.ones(2)}, tmp_path / "in.safetensors")
    rename = {"old.w": "new.w", "old.skip": None}.__getitem__
    import_files([tmp_path / "in.safetensors"], tmp_path / "saved", rename=rename)
    assert export_file(tmp_path / "saved", tmp_path / "out.safetensors") == ["new.w"]
    assert load_file(tmp_path / "out.safetensors")["new.w"].tobytes() == w.tobytes()


def test_sources_that_remember_give_the_same_rows(tmp_path):
    """Rows of epochs that are over are read anew: their source may draw the next ones by what it drew before."""

    class Drawn:
        def __init__(self):
            self.random = np.random.default_rng(4)

        def __iter__(self):
            for _ in range(3):
                yield self.random.normal(size=(12, 12)).astype(np.float32), np.eye(6, dtype=np.float32)[[0, 3] * 6]

    whole, again, history, later = model(0), model(1), ash.History(), ash.History()
    whole.train(3, Drawn(), callbacks=[history, ash.ShardedCheckpoint(tmp_path, keep=0)])
    again.load(tmp_path, step=7)
    again.train(3, Drawn(), callbacks=later, resume=True)
    assert later.losses == history.losses[7:]
    assert_equal(again, whole)
