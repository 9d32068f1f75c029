"""Texts of StableHLO operations in generic form, for tests that draw their shapes and attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from tests.frontends.xla import returning

# Unequal, so that swapped dims show, with 1 among them, which rules treat apart.
SIZES = st.sampled_from((1, 2, 3, 4, 6, 8))


def shapes(smallest: int = 1, largest: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(SIZES, min_size=smallest, max_size=largest).map(tuple)


def tensor(shape: Sequence[int], element: str = "f32") -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def array(values: Sequence[object], of: str = "i64") -> str:
    return f"array<{of}: {', '.join(map(str, values))}>" if values else f"array<{of}>"


def pairs(values: Sequence[Sequence[int]]) -> str:
    if not values:
        return "dense<> : tensor<0x2xi64>"
    return f"dense<[{', '.join(f'[{low}, {high}]' for low, high in values)}]> : tensor<{len(values)}x2xi64>"


def scalars(count: int, element: str = "f32") -> str:
    return ", ".join(f"%s{i}: tensor<{element}>" for i in range(count))


def returned(count: int, element: str = "f32", first: str = "%t") -> str:
    """A terminator that hands out %t0, %t1, ..."""
    names = ", ".join(f"{first}{i}" for i in range(count))
    return f"stablehlo.return {names} : {', '.join([f'tensor<{element}>'] * count)}"


def reducer(op: str = "add", element: str = "f32", inputs: int = 1) -> str:
    """A region that combines each of the inputs with its new value."""
    steps = "\n".join(f"%t{i} = stablehlo.{op} %s{i}, %s{inputs + i} : tensor<{element}>" for i in range(inputs))
    return f"{{ ^bb0({scalars(2 * inputs, element)}):\n{steps}\n{returned(inputs, element)} }}"


def comparator(direction: str = "LT", element: str = "f32", inputs: int = 1) -> str:
    """A region that compares the first input's two values."""
    of = f"tensor<{element}>"
    compare = f"%t0 = stablehlo.compare {direction}, %s0, %s1 : ({of}, {of}) -> tensor<i1>"
    return f"{{ ^bb0({scalars(2 * inputs, element)}):\n{compare}\n{returned(1, 'i1')} }}"


def operation(
    name: str,
    operands: Sequence[str],
    results: Sequence[str],
    attributes: str = "",
    regions: Sequence[str] = (),
    made: Callable[[str, str, str], str] = returning,
) -> str:
    """A module that returns the results of one operation: attributes as in generic form, regions with their braces.

    `made` is what makes the module around it, of its text, operand types and result types.
    """
    names = ", ".join(f"%{i}" for i in range(len(operands)))
    inside = f" ({', '.join(regions)})" if regions else ""
    given = f" <{{{attributes}}}>" if attributes else ""
    return made(f'"stablehlo.{name}"({names}){given}{inside}', ", ".join(operands), ", ".join(results))
