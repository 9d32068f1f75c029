"""Datasets: rows, batches, orders and sizes; and what they say of rows that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.mindspore.dataset import DataError, GeneratorDataset, NumpySlicesDataset, transforms, vision
from autoshard.mindspore.dataset import zip as zip_of


def rows(count: int):
    return [(np.full((4, 6), i, np.float32), np.int32(i)) for i in range(count)]


def test_generator_function_is_read_anew_each_time():
    data = GeneratorDataset(lambda: iter(rows(3)), ["x", "label"])
    for _ in range(2):
        assert [int(label) for _, label in data] == [0, 1, 2]
    assert data.get_dataset_size() == len(data) == 3
    assert next(iter(data))[0].shape == (4, 6)


def test_object_with_getitem():
    class Source:
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return (np.array([i, -i]),)

    data = GeneratorDataset(Source(), "pair", shuffle=False)
    assert [row[0].tolist() for row in data][-1] == [4, -4]


def test_one_column_needs_no_tuple():
    (row,) = GeneratorDataset([np.arange(6)], ["x"])
    assert row[0].tolist() == [0, 1, 2, 3, 4, 5]


@given(st.integers(0, 24), st.integers(1, 5), st.booleans())
def test_shards_share_all_rows_alike(count, shards, shuffle):
    """As MindSpore's DistributedSampler deals them out."""
    labels = []
    for number in range(shards):
        data = NumpySlicesDataset(np.arange(count), ["x"], shuffle=shuffle, num_shards=shards, shard_id=number)
        labels.append([int(x) for (x,) in data])
        assert len(labels[-1]) == data.get_dataset_size() == -(-count // shards)
    dealt = [row[i] for i in range(-(-count // shards)) for row in labels]
    assert sorted(dealt[:count]) == list(range(count)) and dealt[count:] == (dealt * 5)[: len(dealt) - count]
    assert shuffle or dealt[:count] == list(range(count))


def test_shards_that_are_none():
    for shards, number in ((2, 2), (0, 0), (2, None), (None, 0), (2, -1), (True, 0)):
        with pytest.raises(DataError, match="num_shards is .* and shard_id .*; give both"):
            NumpySlicesDataset(np.arange(4), num_shards=shards, shard_id=number)
    with pytest.raises(DataError, match="rows of a generator cannot be had by number"):
        GeneratorDataset(lambda: iter(rows(3)), ["x", "label"], num_shards=2, shard_id=0)


@given(st.integers(0, 24), st.integers(1, 10), st.booleans(), st.integers(1, 3))
def test_batches(count, size, drop, times):
    data = GeneratorDataset(rows(count), ["x", "label"], shuffle=False).batch(size, drop_remainder=drop).repeat(times)
    found = list(data)
    assert len(found) == data.get_dataset_size()
    labels = [int(label) for _, batch in found for label in batch]
    kept = count - count % size if drop else count
    assert labels == list(range(kept)) * times
    assert all(len(batch) == size for _, batch in found) or not drop
    assert all(x.shape == (len(label), 4, 6) for x, label in found)


@given(st.integers(0, 24), st.integers(0, 10))
def test_shuffle_keeps_rows_and_changes_order(count, seed):
    def orders():
        data = GeneratorDataset(rows(count), ["x", "label"]).shuffle(seed=seed)
        return [[int(label) for _, label in data] for _ in range(3)]

    first = orders()
    assert first == orders()
    assert all(sorted(order) == list(range(count)) for order in first)
    if count >= 12:
        assert len(set(map(tuple, first))) == 3


def test_repeated_shuffle_has_an_order_per_time():
    data = GeneratorDataset(rows(12), ["x", "label"]).shuffle(seed=1).repeat(2)
    labels = [int(label) for _, label in data]
    assert sorted(labels[:12]) == sorted(labels[12:])
    assert labels[:12] != labels[12:]


def test_slices():
    x, label = np.arange(24.0).reshape(6, 4), np.arange(6)
    assert [row[1] for row in NumpySlicesDataset((x, label), shuffle=False)] == list(range(6))
    named = NumpySlicesDataset({"x": x, "label": label}, shuffle=False)
    assert named.column_names == ("x", "label")
    assert named.get_dataset_size() == 6
    first = next(named.create_dict_iterator())
    assert first["x"].tolist() == [0, 1, 2, 3]
    epochs = named.create_tuple_iterator(["label"], num_epochs=2)
    assert [len(list(epochs)) for _ in range(3)] == [6, 6, 0]
    assert all(len(row) == 1 for row in named.create_tuple_iterator(["label"]))
    assert NumpySlicesDataset(x).column_names == ("column_0",)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: GeneratorDataset(iter(rows(2)), ["x", "y"]), "give a generator function"),
        (lambda: GeneratorDataset(7, ["x"]), "source is int"),
        (lambda: list(GeneratorDataset(rows(2), ["x"])), "row 0 has 2 values, but there are 1 columns"),
        (
            lambda: list(GeneratorDataset([("a", 1)], ["x", "y"])),
            "row 0 of column 'x' holds <U1, not numbers",
        ),
        (lambda: GeneratorDataset(rows(2), ["x", "y"]).batch(0), "batch_size is 0"),
        (lambda: GeneratorDataset(rows(2), ["x", "y"]).repeat(-1), "count is -1"),
        (
            lambda: list(GeneratorDataset([np.zeros(4), np.zeros(6)], ["x"]).batch(2)),
            r"rows of column 'x' have unequal shapes \[\(4,\), \(6,\)\]",
        ),
        (lambda: NumpySlicesDataset((np.zeros(4), np.zeros(6))), r"shapes are \(4,\), \(6,\)"),
        (lambda: NumpySlicesDataset((np.zeros(4), np.zeros(4)), ["x"]), "2 arrays, but 1 column names"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(DataError, match=words):
        make()


# -- what is done to rows


def numbers(count: int = 6) -> GeneratorDataset:
    return NumpySlicesDataset({"x": np.arange(count), "y": np.arange(count) * 10}, shuffle=False)


def test_map_makes_columns_of_columns():
    data = numbers().map(lambda x: x + 1).map([lambda x, y: (x * 2, y), lambda x, y: x + y], ["x", "y"], ["sum"])
    assert data.get_col_names() == ["sum"] and [int(one) for (one,) in data] == [2 + 12 * i for i in range(6)]
    both = numbers().map(lambda y: (y, -y), "y", ["a", "b"])
    assert both.column_names == ("a", "b", "x") and [int(one) for one in list(both)[2]] == [20, -20, 2]
    assert both.get_dataset_size() == 6
    with pytest.raises(DataError, match=r"map: input_columns: columns \['z'\]; the dataset has x, y"):
        numbers().map(abs, "z")
    with pytest.raises(DataError, match="map: what it gives has 2 values, but there are 1 columns"):
        list(numbers().map(lambda x: (x, x), "x"))
    with pytest.raises(DataError, match="map: operations are 3"):
        numbers().map(3)


def test_rows_are_chosen_renamed_and_joined():
    def first(data):
        return [int(row[0]) for row in data]

    assert first(numbers().project(["y", "x"]).take(2)) == [0, 10] and len(numbers().take(2)) == 2
    assert first(numbers().skip(4)) == [4, 5] and first(numbers().filter(lambda x, y: x % 2 == 1)) == [1, 3, 5]
    assert len(numbers().filter(lambda y: y > 20, "y")) == 3
    named = numbers().rename(["x"], ["z"])
    assert named.column_names == ("z", "y") and first(numbers(2) + numbers(1)) == [0, 1, 0]
    beside = zip_of((named.project("z"), numbers(2)))
    assert beside.column_names == ("z", "x", "y") and len(beside) == 2
    parts = numbers(10).split([0.7, 0.3])
    assert [len(one) for one in parts] == [7, 3] and sorted(first(parts[0]) + first(parts[1])) == list(range(10))
    for wrong, said in (
        (lambda: numbers().zip(numbers()), "zip: columns are"),
        (lambda: numbers().split([3, 2]), r"are \[3, 2\] of 6 rows"),
        (lambda: numbers().rename("x", "y"), "rename"),
        (lambda: numbers().concat(named), "concat"),
        (lambda: numbers().take(-2), "take: count is -2"),
    ):
        with pytest.raises(DataError, match=said):
            wrong()


def test_batches_are_mapped_and_padded():
    def scaled(x, info):
        return ([one * (info.get_batch_num() + 1) for one in x],)

    data = numbers().batch(2, True, 4, per_batch_map=scaled, input_columns=["x"])
    assert [row[0].tolist() for row in data] == [[0, 1], [4, 6], [12, 15]] and data.get_batch_size() == 2
    assert data.output_shapes() == [[2], [2]]
    ragged = GeneratorDataset([np.arange(i + 1) for i in range(4)], ["t"], shuffle=False)
    assert [row[0].shape for row in ragged.padded_batch(2)] == [(2, 2), (2, 4)]
    (whole,) = ragged.padded_batch(4, pad_info={"t": ([5], -1)})
    assert whole[0][0].tolist() == [0, -1, -1, -1, -1]
    with pytest.raises(DataError, match="column 't': arrays .* are larger than"):
        list(ragged.padded_batch(2, pad_info={"t": ([2], 0)}))


def test_iterators_give_tensors_and_transforms_mean_what_mindspores_mean():
    row = next(numbers().create_dict_iterator(num_epochs=1))
    assert row["x"].asnumpy() == 0 and not hasattr(
        next(numbers().create_tuple_iterator(output_numpy=True))[0], "asnumpy"
    )
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    made = transforms.Compose(
        [vision.Rescale(1 / 255, 0.0), vision.Normalize([0.5] * 3, [0.1, 0.2, 0.5]), vision.HWC2CHW()]
    )
    want = ((image / 255 - 0.5) / [0.1, 0.2, 0.5]).transpose(2, 0, 1)
    np.testing.assert_allclose(made(image), want, rtol=1e-5)
    np.testing.assert_allclose(vision.ToTensor()(image), image.transpose(2, 0, 1) / 255, rtol=1e-6)
    assert transforms.TypeCast("i32")(np.float32(2.5)) == 2
    assert transforms.OneHot(3)(np.int32(1)).tolist() == [0, 1, 0]
    np.testing.assert_allclose(transforms.OneHot(3, 0.2)(np.int32(1)), [0.1, 0.8, 0.1])
    with pytest.raises(DataError, match="OneHot of int32 3"):
        transforms.OneHot(3)(np.int32(3))
