"""Every operator's meaning on torch's and JAX's tensors equals numpy's: values, types, shapes; or is named as lacking.

Gradients are graphs of operators, so that what holds for operators holds for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from autoshard.core.tensortype import DType, dtype, type_of
from autoshard.engines.kernels import Kernels, kernels_of
from autoshard.ir.text import body
from autoshard.ops.body import Body
from autoshard.ops.registry import lookup
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import ShapeError
from tests.oracle.grown import grown
from tests.oracle.samples import SAMPLES
from tests.oracle.samples.sample import Sample
from tests.oracle.undetermined import SIGNED

GROUP = 24
"""Operators that one compiled program computes: a compilation costs most of it."""


def _kinds(sample: Sample, arrays: Sequence[np.ndarray]) -> list[DType]:
    return [of.dtype for of in sample.op.result_types(tuple(map(type_of, arrays)), sample.attributes)]


def _samples(kernels: Kernels) -> list[tuple[Sample, list[np.ndarray]]]:
    """All samples of operators that the engine runs."""
    known = [one for one in SAMPLES if kernels.lacking(one.op, one.attributes) is None]
    return [(one, one.arrays(np.random.default_rng(1))) for one in known]


def _assert_same(sample: Sample, got: Sequence[np.ndarray], arrays: Sequence[np.ndarray]) -> None:
    for found, want in zip(got, sample.op.evaluate(arrays, sample.attributes), strict=True):
        assert found.dtype == want.dtype and found.shape == want.shape, str(sample)
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(found, want, err_msg=str(sample))
            continue
        kind = np.complex128 if want.dtype.kind == "c" else np.float64
        one, other = found.astype(kind), want.astype(kind)
        if sample.op.name in SIGNED:  # vectors that may have either sign are compared by their size
            one, other = np.abs(one), np.abs(other)
        scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=1e-30))
        np.testing.assert_allclose(one, other, rtol=3e-5, atol=3e-5 * scale, err_msg=str(sample))


def _lacking(engine: str) -> set[str]:
    kernels = kernels_of(engine)
    return {one.op.name for one in SAMPLES if kernels.lacking(one.op, one.attributes) not in (None, "it holds bodies")}


def _groups(items: list, size: int) -> Iterator[list]:
    return (items[i : i + size] for i in range(0, len(items), size))


@pytest.mark.torch
def test_operators_on_torch() -> None:
    pytest.importorskip("torch")
    kernels = kernels_of("torch")
    samples = _samples(kernels)
    for sample, arrays in samples:
        for _ in range(2):  # by the meaning, which is noted the second time
            _ran_on_torch(kernels, sample, arrays)
        others = sample.arrays(np.random.default_rng(2))
        _assert_same(sample, _ran_on_torch(kernels, sample, arrays), arrays)  # by the tape
        _assert_same(sample, _ran_on_torch(kernels, sample, others), others)
    assert len(samples) > 440


def _ran_on_torch(kernels: Kernels, sample: Sample, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    raws = [kernels.library.array(array) for array in arrays]
    made = kernels.run(sample.op, raws, sample.attributes, _kinds(sample, arrays))
    return [kernels.library.to_numpy(one) for one in made]


@pytest.mark.jax
def test_operators_in_compiled_programs() -> None:
    jax = pytest.importorskip("jax")
    kernels = kernels_of("xla")
    samples = _samples(kernels)
    for group in _groups(samples, GROUP):
        with jax.enable_x64(True):
            step = jax.jit(_all(kernels, group), compiler_options={"xla_backend_optimization_level": "0"})
            made = step([arrays for _, arrays in group])
        for (sample, arrays), got in zip(group, made, strict=True):
            _assert_same(sample, [np.asarray(one) for one in got], arrays)
    assert len(samples) > 430


def _all(kernels: Kernels, group: Sequence[tuple[Sample, list[np.ndarray]]]) -> Callable:
    def step(operands: list[list]) -> list:
        return [
            kernels.run(sample.op, raws, sample.attributes, _kinds(sample, arrays))
            for (sample, arrays), raws in zip(group, operands, strict=True)
        ]

    return step


@pytest.mark.torch
def test_what_torch_lacks() -> None:
    pytest.importorskip("torch")
    assert _lacking("torch") == {"CholeskyInfo", "Lu", "Geqrf", "CustomCall"}


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64"])
def test_numbers_without_a_sign_on_torch(kind: str) -> None:
    """Torch itself neither scatters, nor sorts, nor finds the largest of them."""
    torch = pytest.importorskip("torch")
    from autoshard.engines import torch_library as library

    rng = np.random.default_rng(1)
    x, part = (rng.integers(0, np.iinfo(kind).max, (rows, 3), kind, endpoint=True) for rows in (6, 4))
    places, raw = np.array([1, 3, 1, 5]), torch.tensor(x)
    for ufunc in ("add", "multiply", "maximum", "minimum"):
        wanted = x.copy()
        getattr(np, ufunc).at(wanted, places, part)
        found = library.at(ufunc, raw, (torch.tensor(places),), torch.tensor(part))
        np.testing.assert_array_equal(found.numpy(), wanted, ufunc)
    order = np.argsort(x, 0)
    taken = library.function("take_along_axis")(raw, torch.tensor(order), 0)
    np.testing.assert_array_equal(taken.numpy(), np.take_along_axis(x, order, 0))
    for name in ("max", "min"):
        np.testing.assert_array_equal(library.folded(name, raw, (0,), False).numpy(), getattr(x, name)(0))


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_masks_without_dims_on_torch(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    from autoshard.engines import torch_library as library

    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for mask in (np.array(True), np.array(False)):
        wanted = x.copy()
        wanted[mask] = 7
        found = library.set(torch.tensor(x), (torch.tensor(mask),), torch.tensor(7.0))
        np.testing.assert_array_equal(found.numpy(), wanted)
        np.testing.assert_array_equal(library.get(torch.tensor(x), (torch.tensor(mask),)).numpy(), x[mask])


@pytest.mark.torch
@pytest.mark.parametrize("value", [3.7, -3e30, 3e30, np.nan])
def test_a_single_float_becomes_an_integer_on_torch(value: float) -> None:
    torch, given = pytest.importorskip("torch"), np.asarray(value, np.float32)
    for kind in ("i8", "u8", "i32"):
        (found,) = kernels_of("torch").run(lookup("Convert"), [torch.tensor(given)], {"dtype": kind}, [dtype(kind)])
        wanted = lookup("Convert").evaluate([given], {"dtype": kind})[0]
        assert found.numpy() == wanted and found.numpy().dtype == wanted.dtype


@pytest.mark.torch
def test_an_index_without_dims_is_not_read_by_the_host() -> None:
    """Code of it is traced, where a number is none yet."""
    pytest.importorskip("torch")
    from autoshard.engines.torch_code import function_text

    kernels, attrs = kernels_of("torch"), {
        "offset_dims": (0,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 0,
        "slice_sizes": (1, 3),
    }  # fmt: skip

    def call(*raws: object) -> tuple:
        return kernels.run(lookup("GatherSlices"), raws, attrs, [dtype("f32")])

    types = [type_of(np.zeros((4, 3), np.float32)), type_of(np.zeros((1,), np.int32))]
    assert "aten.index.Tensor" in function_text("gathered", call, types)


@pytest.mark.jax
def test_a_pad_that_is_cut_away_still_reads_its_operand() -> None:
    """JAX would leave out what was received for it."""
    jax = pytest.importorskip("jax")
    kernels, one = kernels_of("xla"), np.zeros((1, 2), np.float32)
    for name, attrs in (
        ("HloPad", {"low": (-1, 0), "high": (2, 0), "interior": (0, 0)}),
        ("Pad", {"paddings": ((0, 2), (0, 0)), "dropped": ((1, 0), (0, 0))}),
    ):
        op, operands = lookup(name), [one, np.float32(7)][: 2 if name == "HloPad" else 1]
        made = jax.make_jaxpr(lambda *raws, op=op, attrs=attrs: kernels.run(op, raws, attrs, [dtype("f32")]))(*operands)
        assert any(made.jaxpr.invars[0] in equation.invars for equation in made.jaxpr.eqns), name


@pytest.mark.jax
def test_a_token_beyond_the_room_of_its_expert() -> None:
    """What numpy refuses a compiled program cannot: its results are no numbers, none that would pass for right."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(3)
    tokens, gates = rng.normal(size=(6, 5)).astype(np.float32), rng.random((6, 2)).astype(np.float32)
    fits, beyond = np.array([[0, 1], [1, 2], [2, 0]] * 2, np.int32), np.full((6, 2), 1, np.int32)
    attrs = {"experts": 3, "blocks": 1, "room": 4, "first": 0}
    op, kernels = lookup("DispatchTokens"), kernels_of("xla")
    jitted = jax.jit(lambda *raws: kernels.run(op, raws, attrs, [dtype("f32")])[0])

    def run(*raws: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(jitted(*raws))

    np.testing.assert_allclose(run(tokens, fits, gates), op.evaluate((tokens, fits, gates), attrs)[0], rtol=1e-6)
    with pytest.raises(ShapeError, match="has room for 4"):
        op.evaluate((tokens, beyond, gates), attrs)
    assert np.isnan(run(tokens, beyond, gates)).any()


@pytest.mark.jax
def test_what_is_written_whole_and_reversed_compiles() -> None:
    """XLA aborts where a scatter to all elements is reversed."""
    jax = pytest.importorskip("jax")
    (sample,) = [one for one in SAMPLES if one.op.name == "SelectAndScatter"][:1]
    kernels, arrays = kernels_of("xla"), sample.arrays(np.random.default_rng(1))
    attrs = {**sample.attributes, "padding": ((0, 0), (0, 0), (1, 1))}
    arrays[1] = np.ones((8, 24, 5), np.float32)
    run = jax.jit(lambda *raws: kernels.run(sample.op, raws, attrs, [dtype("f32")])[0][::-1])
    np.testing.assert_allclose(run(*arrays), sample.op.evaluate(arrays, attrs)[0][::-1], rtol=1e-6)


SCALAR = """\
graph body(a: f32[] data, b: f32[] data)
  p: bool[] = Less(a, b)
  two: f32[] = Fill() {shape=(), value=2.0, dtype="f32"}
  c: f32[] = Mul(a, two)
  d: f32[] = Select(p, c, b)
  return d
"""


@pytest.mark.jax
@pytest.mark.torch
@pytest.mark.parametrize("engine", ["torch", "xla"])
def test_functions_of_numbers_inside_of_operators(engine: str) -> None:
    pytest.importorskip({"xla": "jax"}.get(engine, engine))
    kernels, op, function = kernels_of(engine), lookup("Map"), body(SCALAR)
    one, two = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)
    raws = [kernels.library.array(each) for each in (one, two)]
    (made,) = kernels.run(op, raws, {"body": function, "dtype": "f32"}, [dtype("f32")])
    np.testing.assert_allclose(np.asarray(made), np.where(one < two, one * 2, two))
    assert kernels.lacking(op, {"body": Body("", "one of its own")}) == "there is no text of a function inside of it"


@pytest.mark.jax
def test_the_gradient_of_an_extreme_is_not_lost() -> None:
    """XLA works normalized rows out anew, and with other roundings, where they are compared with their least: in this
    program none was equal to it."""
    jax = pytest.importorskip("jax")
    made, kernels = grown(np.random.default_rng([40171, 57]), uneven=True, gradient=True), kernels_of("xla")
    assert "ExtremeGrad" in [node.op.name for node in made.graph.nodes]

    def whole(feeds: list) -> list:
        held = dict(zip(made.graph.inputs, feeds, strict=True))
        for node in made.graph.nodes:
            operands, kinds = [held[one] for one in node.operands], [of.dtype for of in node.result_types]
            held.update(zip(node.results, kernels.run(node.op, operands, node.attrs, kinds), strict=True))
        return [held[one] for one in made.graph.outputs]

    options = {"xla_backend_optimization_level": "3"}
    with jax.enable_x64(True):
        found = [np.asarray(one) for one in jax.jit(whole, compiler_options=options)(list(made.feeds))]
    for one, other in zip(found, evaluate(made.graph, made.feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
