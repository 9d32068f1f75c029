"""torch's own list of operators (its op_db) through `from_torch`: numbers and gradients against torch's.

    python -m benchmarks.opinfo                      # all float operators, up to 6 of torch's sample inputs each
    python -m benchmarks.opinfo linalg.inv cumprod   # some of them
    python -m benchmarks.opinfo --part 1/4 --json out.json

An operator is `equal` when every sample that is taken imports and gives torch's results, shapes, element types and,
where torch differentiates it, torch's gradients of a weighted sum of them; of random numbers only the types are
compared. Where torch's float32 numbers are other ones, torch's float64 numbers are the truth. It is `refused` when
autoshard says by an error of its own why it does not take it; `WRONG` for all else. Left out are sparse tensors,
jiterator, special polynomials and decompositions whose results are complex.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import autoshard as ash
from autoshard import nn
from autoshard.frontends.torch.tensors import array_of
from autoshard.trace.evaluate import evaluate
from autoshard.trace.function import trace
from autoshard.transform.grad import gradient
from autoshard.util.errors import AutoshardError

EQUAL, REFUSED, WRONG, SKIPPED = "equal", "refused", "WRONG", "no samples"
LEFT_OUT = re.compile(r"sparse|jiterator|polynomial|linalg\.eig$|linalg\.eigvals$")
UNSET = re.compile(r"(new_)?empty")
"""Operators that leave memory as they find it, which may by chance be the same twice."""
SIGNS = re.compile(r"svd|eigh|pca_lowrank|norm/nuc")
SAMPLES = 6
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2}
"""Relative, by element type; 2e-4 for the others, of which linear algebra on float32 needs most."""


@dataclass(frozen=True)
class Standing:
    """What became of an operator, and why."""

    name: str
    state: str
    why: str = ""
    samples: int = 0
    differentiated: bool = False

    def __str__(self) -> str:
        gradient = "+gradient" if self.differentiated and self.state == EQUAL else ""
        return f"{self.name:<52} {self.state}{gradient} ({self.samples}) {self.why}".rstrip()


def operators() -> list[Any]:
    """torch's OpInfos of the operators that take float32, without those left out."""
    # Imported here: it takes seconds.
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.supports_dtype(torch.float32, "cpu") and not LEFT_OUT.search(op.name)]


def title(op: Any) -> str:
    """`scatter_reduce/amax`: the operator's name and its variant."""
    return f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name


def samples_of(op: Any, count: int) -> list[Any]:
    """Up to `count` of torch's sample inputs, spread over all of them."""
    torch.manual_seed(0)
    found = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    if len(found) <= count:
        return found
    return [found[i * (len(found) - 1) // (count - 1)] if count > 1 else found[0] for i in range(count)]


class Applied(torch.nn.Module):
    """An operator applied to some samples: its results, and as the loss a weighted sum of those that have gradients.

    Tensors to differentiate are parameters, all others are buffers.
    """

    def __init__(self, op: Any, samples: Sequence[Any]) -> None:
        super().__init__()
        self.function, self.process = op.op, [one.output_process_fn_grad for one in samples]
        leaves, self.spec = tree_flatten([(one.input, one.args, one.kwargs) for one in samples])
        self.leaves: list[Any] = []
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf = torch.nn.Parameter(leaf.detach().clone())
                self.register_parameter(f"x{i}", leaf)
            elif isinstance(leaf, torch.Tensor):
                self.register_buffer(f"x{i}", leaf.detach().clone())
            self.leaves.append(leaf)
        self.differentiated = any(True for _ in self.parameters())

    def forward(self) -> Any:
        given = [getattr(self, f"x{i}").clone() if _tensor(one) else one for i, one in enumerate(self.leaves)]
        found = self.applied(tree_unflatten(given, self.spec))
        terms = []
        if self.differentiated:
            processed = [process(one) for process, one in zip(self.process, found, strict=True)]
            terms = [_weighted(one) for one in tree_leaves(processed) if _tensor(one) and one.requires_grad]
        return [sum(terms[1:], terms[0])] if terms else [], found

    def applied(self, samples: Sequence[tuple[Any, Any, Any]]) -> list[Any]:
        """The operator's results for each sample: input, arguments, arguments by name."""
        return [self.function(x, *args, **kwargs) for x, args, kwargs in samples]


def _tensor(one: Any) -> bool:
    return isinstance(one, torch.Tensor)


def _weighted(x: torch.Tensor) -> torch.Tensor:
    """A sum over the elements, each with a weight of its own."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    weights = torch.arange(x.numel(), dtype=torch.float32).reshape(x.shape) * (1.4 / max(1, x.numel())) + 0.3
    return (x * weights).sum()


class Different(Exception):
    """autoshard's numbers are not torch's."""


def standing(op: Any, count: int = SAMPLES) -> Standing:
    """Import the operator on samples and compare it with torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = samples_of(op, count)
        except Exception as error:  # of torch's own making of samples
            return Standing(title(op), SKIPPED, f"torch makes none: {_line(error)}")
        samples = [one for one in samples if _runs(op, one)]
        if not samples:
            return Standing(title(op), SKIPPED)
        drawn = [is_random(op, one) for one in samples]
        groups = [
            [one for one, random in zip(samples, drawn, strict=True) if random is which] for which in (False, True)
        ]
        found = [_checked(op, group, which) for group, which in zip(groups, (False, True), strict=True) if group]
        if any(state != EQUAL for state, *_ in found) and len(samples) > 1:
            found = [_checked(op, [one], random) for one, random in zip(samples, drawn, strict=True)]
        state, why, differentiated = _worst(found)
    return Standing(title(op), state, why, len(samples), differentiated)


def _runs(op: Any, sample: Any) -> bool:
    """Whether torch itself computes the sample as a module does."""
    try:
        Applied(op, [sample])()
    except Exception:  # whatever torch does not take
        return False
    return True


def _worst(found: Iterable[tuple[str, str, bool]]) -> tuple[str, str, bool]:
    states = list(found)
    return max(states, key=lambda one: (EQUAL, REFUSED, WRONG).index(one[0]))


class _Drawing(TorchDispatchMode):
    """Notes whether an operator draws random numbers, by torch's own tag."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def is_random(op: Any, sample: Any) -> bool:
    """Whether torch draws random numbers, or gives other results each time: those of memory as it is found."""
    if UNSET.match(op.name):
        return True
    module = Applied(op, [sample])
    with mock.patch("torch.manual_seed", lambda seed: None):
        with _Drawing() as drawing:
            first = _tensors(module()[1])
        if drawing.seen:
            return True
        torch.rand(11)
        again = _tensors(module()[1])
    return not all(torch.equal(_plain(a), _plain(b)) for a, b in zip(first, again, strict=True))


def _plain(x: torch.Tensor) -> torch.Tensor:
    """A tensor without NaN of a type that torch compares."""
    x = x.detach().resolve_conj()
    return (torch.view_as_real(x.to(torch.complex64)) if x.is_complex() else x.double()).nan_to_num()


def _checked(op: Any, samples: Sequence[Any], random: bool) -> tuple[str, str, bool]:
    """State and reason of an operator on samples; whether a gradient was compared."""
    module = Applied(op, samples)
    try:
        differentiated = compare(module, types_only=random, signs=bool(SIGNS.search(op.name)))
    except AutoshardError as error:
        return REFUSED, _line(error), False
    except Different as error:
        return WRONG, str(error), False
    except Exception as error:  # a traceback where an error of the project should stand
        return WRONG, f"{type(error).__name__}: {_line(error)}", False
    return EQUAL, "", differentiated


def compare(module: Applied, types_only: bool = False, signs: bool = False) -> bool:
    """Compare results and gradients with torch's; whether there are gradients.

    Args:
        types_only: the results are random, so that only their types can be equal.
        signs: results are what the list itself compares: vectors without their signs.

    Raises:
        Different: they are not equal.
        AutoshardError: what autoshard does not take.
    """
    optimizer = (lambda parameters: nn.SGD(parameters, 1.0)) if module.differentiated else None
    model = ash.from_torch(deepcopy(module), (), loss="0.0" if optimizer else None, optimizer=optimizer)
    forward = trace(model.construct, name="applied")
    graph, inputs = forward.graph, forward.inputs()
    torch.manual_seed(0)
    losses, results = module()
    outputs = evaluate(graph, inputs)
    exact = Exact(module)
    same("loss", outputs[: len(losses)], losses, exact.losses, types_only)
    same("result", outputs[len(losses) :], _tensors(results), exact.results, types_only or signs)
    if not losses or types_only:
        return False
    losses[0].backward()
    named = {id(parameter): value for value, parameter in forward.parameters.items()}
    ours = {one.name: named[id(one)] for one in model.get_parameters() if id(one) in named}
    trained = [(name, one) for name, one in module.named_parameters() if name in ours]
    full, grads = gradient(graph, graph.outputs[0], [ours[name] for name, _ in trained])
    found = evaluate(full, inputs)
    at = {value: i for i, value in enumerate(full.outputs)}
    got = [found[at[grads[ours[name]]]] for name, _ in trained]
    want = [_gradient(one) for _, one in trained]
    same("gradient", got, want, lambda: exact.gradients([name for name, _ in trained]))
    return True


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad + 0


class Exact:
    """torch's results and gradients in float64: what decides where its float32 ones and autoshard's differ."""

    def __init__(self, module: Applied) -> None:
        self.module = module

    @cached_property
    def _found(self) -> tuple[Applied, list[torch.Tensor], list[torch.Tensor]]:
        module = deepcopy(self.module).double().requires_grad_(True)
        module.zero_grad()
        torch.manual_seed(0)
        losses, results = module()
        for loss in losses:
            loss.backward()
        return module, losses, _tensors(results)

    def losses(self) -> list[torch.Tensor]:
        return self._found[1]

    def results(self) -> list[torch.Tensor]:
        return self._found[2]

    def gradients(self, names: Sequence[str]) -> list[torch.Tensor]:
        parameters = dict(self._found[0].named_parameters())
        return [_gradient(parameters[name]) for name in names]


def _tensors(found: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(found) if _tensor(one)]


def same(
    what: str,
    found: Sequence[np.ndarray],
    wanted: Sequence[torch.Tensor],
    exact: Callable[[], Sequence[torch.Tensor]],
    types_only: bool = False,
) -> None:
    """Raises Different if arrays are neither torch's tensors nor its exact ones."""
    if len(found) < len(wanted):
        raise Different(f"{len(found)} {what}s, not {len(wanted)}")
    for i, (got, want) in enumerate(zip(found, wanted, strict=False)):
        kind = str(want.dtype).removeprefix("torch.")
        if str(got.dtype) != kind or got.shape != tuple(want.shape):
            raise Different(f"{what} {i} is {got.dtype}{got.shape}, not {kind}{tuple(want.shape)}")
        if types_only:
            continue
        tolerance = TOLERANCE.get(kind, 2e-4)
        try:
            _near(f"{what} {i}", got, _array(want), tolerance)
        except Different:
            if not np.issubdtype(got.dtype, np.inexact) or not _is_near(got, exact, i, tolerance):
                raise


def _is_near(got: np.ndarray, exact: Callable[[], Sequence[torch.Tensor]], place: int, tolerance: float) -> bool:
    """Whether numbers are torch's in float64; not where torch has none."""
    try:
        _near("", got, _array(exact()[place]), tolerance)
    except Exception:  # Different, or whatever torch says of float64 beside what the sample holds
        return False
    return True


def _array(tensor: torch.Tensor) -> np.ndarray:
    return array_of(tensor.detach().resolve_conj().resolve_neg())


def _near(what: str, got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    if got.dtype.kind in "biu":
        if not np.array_equal(got, want):
            raise Different(f"{what}: {np.count_nonzero(got != want)} of {got.size} whole numbers differ")
        return
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    got, want = got.astype(wide), want.astype(wide)
    if got.shape != want.shape:
        raise Different(f"{what} is of shape {got.shape}, not {want.shape}")
    finite = np.abs(want[np.isfinite(want)])
    scale = float(finite.max(initial=1.0))
    if not np.allclose(got, want, rtol=tolerance, atol=tolerance / 10 * scale, equal_nan=True):
        with np.errstate(all="ignore"):
            worst = np.nanmax(np.abs(got - want), initial=0.0)
        spoiled = np.count_nonzero(np.isnan(got) != np.isnan(want))
        raise Different(
            f"{what} differs by up to {worst:.3g}{f', {spoiled} NaN' if spoiled else ''} of {finite.max(initial=0):.3g}"
        )


def _line(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if len(words) < 400 else f"{words[:400]} ..."


# -- as a program


def chosen(names: Sequence[str], part: str) -> Iterator[Any]:
    """The operators of these names (all if none), of which each n-th from k-1 on for a part 'k/n'."""
    at, of = (int(word) for word in part.split("/"))
    found = [op for op in operators() if not names or op.name in names or title(op) in names]
    return iter(found[at - 1 :: of])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", default="1/1", help="k/n: the k-th of n slices")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    for op in chosen(given.names, given.part):
        start = time.perf_counter()
        found.append(standing(op, given.samples))
        print(f"{found[-1]}  {time.perf_counter() - start:.1f} s", flush=True)
    print(", ".join(f"{count} {state}" for state, count in Counter(one.state for one in found).most_common()))
    if given.json:
        given.json.write_text(json.dumps([vars(one) for one in found], indent=1))


if __name__ == "__main__":
    main()
