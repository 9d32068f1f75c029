"""Layout: how a tensor lies on a mesh. For each dim the axes that split it, and axes of partial sums.

Text: `dp, -` (rows over dp), `dp.tp, -` (rows over dp, then each part over tp), `dp, - +tp` (every rank of tp
holds a term of a sum; `max tp`, `min tp`, `prod tp` for the other reductions), `d:(1)2, d:(2)4` (sub-axes),
`()` (a scalar).
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import cast

from autoshard.layout.mesh import AxisRef, Groups, Mesh, merge_refs, size_of
from autoshard.util.errors import LayoutError, MeshError
from autoshard.util.memo import Interned
from autoshard.util.notebook import MOST_ROWS, table

REDUCTIONS = ("sum", "max", "min", "prod")
Refs = tuple[AxisRef, ...]
_TERMS = re.compile(r"(\+|\bmax |\bmin |\bprod )[ \t]*([\w:().]+)\s*\Z")


class Layout:
    """What a tensor has: axes per dim, major to minor, and the partial axes with their reduction.

    Layouts are interned and immutable: equal layouts are the same object. Refs of size 1 are dropped and
    adjacent pieces of one axis joined, so each way of lying on the ranks has one form.

    `Layout((2, 2, 2), ("dp", "sp", "mp"))` makes the mesh on the way, and calling a layout names the axes per
    dim: `Layout((2, 2, 2), ("dp", "sp", "mp"))("dp", "mp")`; "None" or "-" leaves a dim whole, a tuple splits
    it by several. In this form the third argument is the `rank_list`: the ranks in the order of the matrix.

    Raises:
        LayoutError: an axis used twice, unknown, or a bad reduction.

    >>> from autoshard import Layout, Mesh
    >>> layout = Layout.parse("dp, tp", Mesh(dp=2, tp=4))
    >>> layout.local_shape((16, 12))
    (8, 3)
    """

    _interned: Interned[Layout] = Interned()
    mesh: Mesh
    dims: tuple[Refs, ...]
    partial: Refs
    reduction: str

    def __new__(
        cls,
        mesh: Mesh | Sequence[int],
        dims: Iterable[Iterable[AxisRef]] | Sequence[str] = (),
        partial: Iterable[AxisRef] = (),
        reduction: str = "sum",
        rank_list: Sequence[int] | None = None,
    ) -> Layout:
        if not isinstance(mesh, Mesh):
            return cls(_named_mesh(mesh, tuple(dims), rank_list or tuple(partial)))
        if rank_list is not None:
            raise LayoutError(f"rank_list goes with a device matrix; mesh '{mesh}' has its own device order")
        merged = tuple([merge_refs(refs) for refs in cast("Iterable[Iterable[AxisRef]]", dims)])
        terms = _sorted_terms(mesh, partial)
        return cls._of(mesh, merged, terms, reduction if terms else "sum")

    @classmethod
    def _of(cls, mesh: Mesh, dims: tuple[Refs, ...], partial: Refs, reduction: str) -> Layout:
        """The one layout of these merged dims and sorted terms."""
        key = (mesh, dims, partial, reduction)
        known = cls._interned.get(key)
        if known is not None:
            return known
        _check(*key)
        layout = super().__new__(cls)
        layout.mesh, layout.dims, layout.partial, layout.reduction = key
        return cls._interned.keep(key, layout)

    def __reduce__(self) -> tuple:
        return Layout, (self.mesh, self.dims, self.partial, self.reduction)

    def __call__(self, *dims: str | None | Sequence[str]) -> Layout:
        """The layout on the same mesh that splits its dims by the named axes."""
        return Layout(self.mesh, [_named_refs(self.mesh, dim) for dim in dims])

    @staticmethod
    def replicated(mesh: Mesh, rank: int) -> Layout:
        """Every rank holds the whole tensor of `rank` dims."""
        return Layout(mesh, [()] * rank)

    @staticmethod
    def whole(mesh: Mesh, rank: int) -> Layout:
        """The former name of `replicated`, with a warning; it goes with release 0.2."""
        warnings.warn("Layout.whole is Layout.replicated now; it goes with release 0.2", DeprecationWarning, 2)
        return Layout.replicated(mesh, rank)

    @staticmethod
    def parse(text: str, mesh: Mesh) -> Layout:
        """Read what `str(layout)` prints."""
        match = _TERMS.search(text)
        body = (text if match is None else text[: match.start()]).strip()
        sign, terms = (None, "") if match is None else (match[1], match[2])
        try:
            dims = [] if body in ("()", "") else [_parse_refs(dim, mesh) for dim in body.split(",")]
            partial = _parse_refs(terms, mesh) if terms else ()
        except MeshError as error:
            raise LayoutError(f"cannot read layout {text!r}: {error}") from None
        return Layout(mesh, dims, partial, "sum" if sign in (None, "+") else sign.strip())

    def __str__(self) -> str:
        return (
            ", ".join(map(self.show_dim, range(self.rank))) + self.show_partial()
            if self.dims
            else ("()" + self.show_partial())
        )

    def _repr_html_(self) -> str:
        """In notebooks: which part of each dim each rank holds."""
        ranks = range(min(self.mesh.devices, MOST_ROWS))
        held = ([rank, *(self.mesh.index(rank, refs) for refs in self.dims)] for rank in ranks)
        parts = ", ".join(f"dim {i} in {count}" for i, count in enumerate(self.parts)) or "a number"
        heads = ["rank", *(f"part of dim {i}" for i in range(self.rank))]
        return table(f"[{self}] on mesh {self.mesh}: {parts}", heads, list(held), self.mesh.devices)

    def __repr__(self) -> str:
        return f"Layout({self})"

    def show_dim(self, dim: int) -> str:
        return ".".join(map(self.mesh.show_ref, self.dims[dim])) or "-"

    def show_partial(self) -> str:
        if not self.partial:
            return ""
        sign = "+" if self.reduction == "sum" else self.reduction + " "
        return f" {sign}{'.'.join(map(self.mesh.show_ref, self.partial))}"

    def show_type(self, shape: Sequence[int], dtype: str) -> str:
        """A type with its layout, e.g. `f32[64@dp, 1024@tp] +tp`."""
        dims = (f"{size}@{self.show_dim(i)}" if self.dims[i] else str(size) for i, size in enumerate(shape))
        return f"{dtype}[{', '.join(dims)}]{self.show_partial()}"

    @property
    def rank(self) -> int:
        """Number of dims (not a rank of the mesh)."""
        return len(self.dims)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Into how many parts each dim is split."""
        return tuple([size_of(refs) for refs in self.dims])

    @cached_property
    def split(self) -> int:
        """Into how many different blocks the tensor is cut."""
        return math.prod(self.parts)

    @cached_property
    def is_replicated(self) -> bool:
        """Every rank holds the complete and final tensor."""
        return not self.partial and not any(self.dims)

    @property
    def is_whole(self) -> bool:
        """The former name of `is_replicated`, with a warning; it goes with release 0.2."""
        warnings.warn("Layout.is_whole is Layout.is_replicated now; it goes with release 0.2", DeprecationWarning, 2)
        return self.is_replicated

    @cached_property
    def used(self) -> Refs:
        """All axes used, dims first, then partial."""
        return tuple(itertools.chain(*self.dims, self.partial))

    def free(self) -> Refs:
        """Pieces of the mesh that neither split a dim nor are partial, in mesh order."""
        return self._free

    @cached_property
    def _free(self) -> Refs:
        return free_refs(self.mesh, self.used)

    def with_dims(self, dims: Iterable[Iterable[AxisRef]]) -> Layout:
        """The same terms with other dims."""
        return self._of(self.mesh, tuple([merge_refs(refs) for refs in dims]), self.partial, self.reduction)

    def with_dim(self, dim: int, refs: Iterable[AxisRef]) -> Layout:
        """The same with one dim split by other pieces."""
        dims = self.dims
        return self._of(self.mesh, (*dims[:dim], merge_refs(refs), *dims[dim + 1 :]), self.partial, self.reduction)

    def turned(self, dims: Sequence[int]) -> Layout:
        """The same with dim `dims[i]` as dim i."""
        return self._of(self.mesh, tuple([self.dims[dim] for dim in dims]), self.partial, self.reduction)

    def final(self) -> Layout:
        """The same dims with nothing partial."""
        return self._of(self.mesh, self.dims, (), "sum") if self.partial else self

    def divides(self, shape: Sequence[int]) -> bool:
        """Whether every dim is cut into equal parts."""
        return not any([size % parts for size, parts in zip(shape, self.parts, strict=True)])

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the largest block a rank holds: sizes that do not divide are rounded up."""
        return tuple([-(-size // parts) for size, parts in zip(shape, self.parts, strict=True)])

    def local_size(self, shape: Sequence[int]) -> int:
        """Elements of the largest block a rank holds."""
        count = 1
        for size, parts in zip(shape, self.parts, strict=True):
            count *= -(-size // parts)
        return count

    def block(self, rank: int, shape: Sequence[int]) -> tuple[slice, ...]:
        """Which block of a tensor of `shape` a rank holds; the last are shorter (or empty) if uneven."""
        block = []
        for size, refs, local in zip(shape, self.dims, self.local_shape(shape), strict=True):
            start = min(size, self.mesh.index(rank, refs) * local)
            block.append(slice(start, min(size, start + local)))
        return tuple(block)

    def holders(self) -> Groups:
        """Groups of ranks that hold the same block (MindSpore's group by tensor map)."""
        return self.mesh.groups(free_refs(self.mesh, [ref for refs in self.dims for ref in refs]))

    def check_fits(self, shape: Sequence[int], what: str) -> None:
        """Raise LayoutError unless this layout has as many dims as `shape`."""
        if self.rank != len(shape):
            raise LayoutError(
                f"layout [{self}] of {what} has {self.rank} dims, but the shape {tuple(shape)} has {len(shape)}"
            )


def free_refs(mesh: Mesh, used: Iterable[AxisRef]) -> Refs:
    """The pieces of the mesh that `used` leaves over, in mesh order."""
    taken: dict[str, list[AxisRef]] = {}
    for ref in used:
        taken.setdefault(ref.name, []).append(ref)
    free: list[AxisRef] = []
    for name, size in mesh.axes:
        start, found = 1, taken.get(name, ())
        for ref in sorted(found) if len(found) > 1 else found:
            if start < ref.pre:
                free.append(AxisRef(name, start, ref.pre // start))
            start = ref.next
        if start < size:
            free.append(AxisRef(name, start, size // start))
    return merge_refs(tuple(free))


def _sorted_terms(mesh: Mesh, partial: Iterable[AxisRef]) -> Refs:
    terms = tuple(partial)
    for ref in terms:
        if ref.name not in mesh.sizes:
            raise LayoutError(f"layout is partial along {ref.name!r}, which mesh '{mesh}' does not have")
    return merge_refs(sorted(terms, key=mesh.sort_key)) if terms else ()


def _named_mesh(sizes: Sequence[int], names: tuple, order: Sequence) -> Mesh:
    if len(sizes) != len(names):
        raise LayoutError(f"device matrix {tuple(sizes)} has {len(sizes)} axes but {len(names)} names {names}")
    if "interleaved_parallel" in names:
        raise LayoutError(
            f"device matrix {tuple(sizes)} names {names}: interleaved_parallel cuts a tensor further on one "
            "device, which no layout says; leave it out"
        )
    return Mesh(zip(names, sizes, strict=True), order or None)


def _named_refs(mesh: Mesh, dim: str | None | Sequence[str]) -> Refs:
    if dim is None or dim in ("None", "-"):
        return ()
    names = (dim,) if isinstance(dim, str) else dim
    try:
        return tuple(mesh.ref(name) for name in names)
    except MeshError as error:
        raise LayoutError(f"cannot make a layout: {error}") from None


def _parse_refs(text: str, mesh: Mesh) -> Refs:
    text = text.strip()
    return () if text == "-" else tuple(mesh.ref(part) for part in text.split("."))


def _check(mesh: Mesh, dims: tuple[Refs, ...], partial: Refs, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise LayoutError(f"unknown reduction {reduction!r}; one of {', '.join(REDUCTIONS)}")
    refs = sorted([*itertools.chain(*dims), *partial])
    try:
        for ref in refs:
            mesh.check_ref(ref)
    except MeshError as error:
        raise LayoutError(f"layout uses what the mesh '{mesh}' does not have: {error}") from None
    # Pieces of one axis, in order, are all apart if each begins where one ends or at a multiple of that.
    if any(one.name == other.name and other.pre % one.next for one, other in itertools.pairwise(refs)):
        raise _used_twice(mesh, dims, partial)


def _used_twice(mesh: Mesh, dims: tuple[Refs, ...], partial: Refs) -> LayoutError:
    """What to say of pieces that overlap or do not fit each other."""
    places = [(f"dim {i}", refs) for i, refs in enumerate(dims)] + [("partial", partial)]
    used = [(ref, position) for position, refs in places for ref in refs]
    for count, (ref, position) in enumerate(used):
        for other, where in used[:count]:
            if ref.clashes(other):
                free = ", ".join(map(mesh.show_ref, free_refs(mesh, [taken for taken, _ in used[:count]]))) or "none"
                return LayoutError(
                    f"layout uses mesh axis {mesh.show_ref(ref)!r} for {position}, but "
                    f"{mesh.show_ref(other)!r} already serves {where}; an axis can be used once. "
                    f"Free axes of the mesh: {free}"
                )
    raise AssertionError(f"the pieces of {dims} and {partial} are all apart")
