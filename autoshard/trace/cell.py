"""Cell: a piece of a model that owns parameters, primitives and cells; `construct` applies it.

A cell can be called on numpy arrays, where it computes at once, and inside a trace, where it adds to a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autoshard.core.tensortype import DType, dtype
from autoshard.layout.layout import Layout
from autoshard.ops.primitive import Primitive
from autoshard.trace.cell_names import CellNames
from autoshard.trace.parameter import Entry, Owned, Parameter, active, cast_all_to, cast_to, computed_in
from autoshard.util.checks import positive
from autoshard.util.errors import GraphError, StrategyError, at
from autoshard.util.near import nearest
from autoshard.util.source import Source, caller

Given = Sequence[int] | Layout | None
_SOURCED = frozenset({"in_shardings", "out_shardings", "pipeline_stage", "pipeline_segment"})
"""Attributes of which a cell keeps where they were set."""


class Cell(Owned, CellNames):
    """Base of all layers and models: write `construct(self, ...)`, assign what it uses to attributes.

    Args:
        auto_prefix: whether names of what the attributes hold start with the attribute (`dense1.weight`).

    Attributes:
        in_shardings: what is asked of its inputs: an entry per argument that `Spec.of` takes (nested as the argument
            is), None where nothing is asked; or a dict by the arguments' names.
        out_shardings: the same of what it returns, nested as that is.

    Of the cell that is traced these are what is asked of the graph's inputs and outputs; in any other cell they are
    sharding constraints.
    """

    def __init__(self, auto_prefix: bool = True) -> None:
        self.auto_prefix = auto_prefix
        self.training = False
        self.in_strategy: tuple[Entry, ...] | None = None
        self.out_strategy: tuple[Entry, ...] | None = None
        self.shard_source: Source | None = None
        self.recomputes = False
        self.compute_type: DType | None = None
        self.result_type: DType | None = None  # what results are cast to where it computes in another type
        # Where in_shardings, out_shardings and stages were set; first, as setting them notes it.
        self.annotation_sources: dict[str, Source | None] = {}
        self.in_shardings: Any = None
        self.out_shardings: Any = None

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError(f"{type(self).__name__} has no method construct(self, ...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.compute_type is None:
            return self._called(*args, **kwargs)
        with computed_in(self.compute_type):
            kind = self.compute_type
            args = tuple(cast_to(kind, one) for one in args)
            found = self._called(*args, **{name: cast_to(kind, one) for name, one in kwargs.items()})
        return found if self.result_type is None else cast_all_to(self.result_type, found)

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        recorder = active()
        if recorder is None:
            return self.construct(*args, **kwargs)
        return recorder.call(self, args, kwargs)

    # -- what it owns

    def __setattr__(self, label: str, value: Any) -> None:
        if isinstance(value, Owned | Primitive) and "auto_prefix" not in vars(self):
            raise GraphError(f"{type(self).__name__}.__init__ must call super().__init__() before it sets {label!r}")
        if isinstance(value, list | tuple) and self._without(value):
            raise GraphError(
                f"{type(self).__name__}.{label} is a {type(value).__name__} with cells or parameters in "
                f"it, which nobody would find to train; use CellList, or an attribute for each (a row of parameters "
                f"comes after the cell that has them)"
            )
        object.__setattr__(self, label, value)
        if label in _SOURCED:
            self.annotation_sources[label] = caller()
        if isinstance(value, Owned):
            value.adopt(self, label)
        elif isinstance(value, Primitive):
            value.name = value.name or label
            for name, part in value.state.items():
                setattr(self, f"{label}_{name}", part)

    def _without(self, row: Sequence[Any]) -> list[Owned]:
        """What a row would bring into this cell; parameters that it has already are found, and named, there."""
        owned = [item for item in row if isinstance(item, Owned)]
        known = {id(one) for one in self.get_parameters()} if owned else ()
        return [item for item in owned if id(item) not in known]

    def __setstate__(self, state: dict[str, Any]) -> None:
        for label, value in state.items():
            object.__setattr__(self, label, value)
            if isinstance(value, Owned):
                value.adopt(self, label)

    def __repr__(self) -> str:
        inner = [
            f"  {label}: {value!r}".replace("\n", "\n  ")
            for label, value in vars(self).items()
            if _is_part(label, value)
        ]
        return "\n".join([f"{type(self).__name__}(", *inner, ")"]) if inner else f"{type(self).__name__}()"

    def holds(self, label: str, part: object) -> bool:
        """Whether the attribute `label` is this very object."""
        return vars(self).get(label) is part

    def prefixes(self, label: str, part: object) -> bool:
        """Whether names of what the attribute `label` holds start with it (a parameter's own always do)."""
        return self.auto_prefix or isinstance(part, Parameter)

    def label_of(self, primitive: Primitive) -> str | None:
        """The attribute that holds this primitive, if one does."""
        return next((label for label, value in vars(self).items() if value is primitive), None)

    def cells_and_names(self, prefix: str = "") -> Iterator[tuple[str, Cell]]:
        """This cell and all below it, each once, with their paths seen from here."""
        seen: set[int] = set()
        stack: list[tuple[str, Cell]] = [(prefix, self)]
        while stack:
            name, cell = stack.pop()
            if id(cell) in seen:
                continue
            seen.add(id(cell))
            yield name, cell
            below = [(_join(name, label), part) for label, part in vars(cell).items() if _is_part(label, part)]
            stack.extend((label, part) for label, part in reversed(below) if isinstance(part, Cell))

    def cells(self) -> Iterator[Cell]:
        """The cells that are attributes of this one."""
        return (part for label, part in vars(self).items() if _is_part(label, part) and isinstance(part, Cell))

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """The parameters of this cell and, with `expand`, of all below it; each once."""
        seen: set[int] = set()
        for _, cell in self.cells_and_names():
            for label, part in vars(cell).items():
                if isinstance(part, Parameter) and _is_part(label, part) and id(part) not in seen:
                    seen.add(id(part))
                    yield part
            if not expand:
                return

    def parameters_dict(self) -> dict[str, Parameter]:
        """Name -> parameter.

        Raises:
            GraphError: two parameters have one name.
        """
        named: dict[str, Parameter] = {}
        for parameter in self.get_parameters():
            if parameter.name in named:
                raise GraphError(f"{type(self).__name__}: two parameters are named {parameter.name!r}; rename one")
            named[parameter.name] = parameter
        return named

    def parameters_and_names(self) -> Iterator[tuple[str, Parameter]]:
        return iter(self.parameters_dict().items())

    def trainable_params(self) -> list[Parameter]:
        return [parameter for parameter in self.get_parameters() if parameter.requires_grad]

    def untrainable_params(self) -> list[Parameter]:
        return [parameter for parameter in self.get_parameters() if not parameter.requires_grad]

    def set_train(self, mode: bool = True) -> Cell:
        """Switch this cell and all below it to training (dropout works) or back; returns the cell."""
        for _, cell in self.cells_and_names():
            cell.training = mode
        return self

    def to_float(self, dst_type: Any) -> Cell:
        """Compute this cell and all below it in a float type: inputs and parameters of other float types are cast.

        Parameters keep their type, and the result has that of the computation. Returns the cell.

        Raises:
            GraphError: no float type.
        """
        kind = dtype(dst_type)
        if not kind.is_float:
            raise GraphError(f"{self.path or type(self).__name__}.to_float: {kind} is no float type")
        for _, cell in self.cells_and_names():
            cell.compute_type, cell.result_type = kind, None
        return self

    def recompute(self, **settings: Any) -> None:
        """What this cell computes is made again for the backward pass of training, from what enters it, instead of
        being kept; what it gives to others is kept.

        Its operators are known by their names, which begin with the cell's path.

        Raises:
            GraphError: any of MindSpore's settings, which are not offered.
        """
        if settings:
            raise GraphError(
                f"{self.path or type(self).__name__}.recompute takes no settings here, not {', '.join(settings)}"
            )
        self.recomputes = True

    # -- how it is split

    def shard(
        self,
        in_strategy: Sequence[Given] | None = None,
        out_strategy: Sequence[Given] | None = None,
        parameter_plan: Mapping[str, Given] | None = None,
    ) -> Cell:
        """Fix how the cell's inputs, outputs and parameters are split; returns the cell.

        Args:
            in_strategy: per tensor among the arguments, the parts of each dim or a Layout; None leaves one
                open.
            out_strategy: the same per result.
            parameter_plan: the same by parameter, named as seen from this cell or by its full name.

        Raises:
            StrategyError: not of this form, or no such parameter.
        """
        source = caller()
        what = f"{self.path or type(self).__name__}.shard{at(source)}"
        self.in_strategy = _checked(in_strategy, f"{what}: in_strategy")
        self.out_strategy = _checked(out_strategy, f"{what}: out_strategy")
        self.shard_source = source
        if parameter_plan is not None and not isinstance(parameter_plan, Mapping):
            raise StrategyError(
                f"{what}: parameter_plan is {parameter_plan!r}, but must be a dict such as "
                f"{{'weight': (2, 1)}} from a parameter's name to the parts of each dim or a Layout"
            )
        for name, given in (parameter_plan or {}).items():
            parameter = self._find(name, what)
            (parameter.in_strategy,) = _checked((given,), f"{what}: parameter_plan[{name!r}]") or (None,)
            parameter.source = source
        return self

    def _find(self, name: str, what: str) -> Parameter:
        own = f"{self.path}." if self.path else ""
        known = {key.removeprefix(own): parameter for key, parameter in self.parameters_dict().items()}
        found = known.get(name, known.get(name.removeprefix(own)))
        if found is None:
            near = nearest(name, known)
            raise StrategyError(f"{what}: parameter_plan names {name!r}, but the parameters are like {near}")
        return found


def recomputed(cell: Cell) -> tuple[str, ...] | None:
    """The paths of cells that recompute; None if none does."""
    return tuple(one.path for _, one in cell.cells_and_names() if one.recomputes) or None


class CellList(Cell):
    """Cells in a row, named by their position."""

    def __init__(self, cells: Iterable[Cell] = ()) -> None:
        super().__init__()
        self.extend(cells)

    def append(self, cell: Cell) -> CellList:
        setattr(self, str(len(self)), cell)
        return self

    def extend(self, cells: Iterable[Cell]) -> CellList:
        for cell in cells:
            self.append(cell)
        return self

    def __len__(self) -> int:
        return sum(1 for _ in self.cells())

    def __iter__(self) -> Iterator[Cell]:
        return self.cells()

    def __getitem__(self, index: int | slice) -> Any:
        return list(self.cells())[index]


class SequentialCell(CellList):
    """Cells applied one after the other; they are given one by one or as one list."""

    def __init__(self, *cells: Any) -> None:
        super().__init__(cells[0] if len(cells) == 1 and isinstance(cells[0], list | tuple) else cells)

    def construct(self, x: Any) -> Any:
        for cell in self.cells():
            x = cell(x)
        return x


def _is_part(label: str, value: object) -> bool:
    return label != "_owner" and isinstance(value, Owned | Primitive)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _checked(given: Any, what: str) -> tuple[Entry, ...] | None:
    if given is None:
        return None
    if not isinstance(given, tuple | list):
        raise StrategyError(f"{what} is {given!r}, but must be a tuple with an entry per tensor")
    for entry in given:
        if entry is None or isinstance(entry, Layout):
            continue
        if not isinstance(entry, tuple | list) or any(positive(parts) is None for parts in entry):
            raise StrategyError(
                f"{what}: entry {entry!r} must be a tuple of positive whole numbers, one per dim, or a Layout"
            )
    return tuple(tuple(map(int, entry)) if isinstance(entry, tuple | list) else entry for entry in given)


def stages_of_cells(network: Cell) -> dict[str, int]:
    """The stages that a model's cells bear, MindSpore's way: `network.layer1.pipeline_stage = 1`; by their paths, with
    which names in the graph begin, as `cut_stages` takes them. The stage of a cell inside of another one counts more
    than that one's.
    """
    found = ((cell.path, getattr(cell, "pipeline_stage", None)) for _, cell in network.cells_and_names())
    return {path: stage for path, stage in found if path and stage is not None}
