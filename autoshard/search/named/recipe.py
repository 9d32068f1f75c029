"""Recipes: what a named plan splits, over which mesh axes; alone or several of them together.

`composed("zero3(dp) + megatron_sp(tp)")` reads a composition: each recipe with the axes that it is for. Where
sequences are split, ZeRO's parts may lie over their axis too, as in `zero3(dp.cp) + context_parallel(cp)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from autoshard.layout.layout import Refs
from autoshard.layout.mesh import Mesh
from autoshard.util.errors import PlanError, UnknownNameError

USUAL = {
    "data": ("dp", "data", "fsdp"),
    "shard": ("fsdp", "shard"),
    "tensor": ("tp", "mp", "tensor", "model"),
    "expert": ("ep", "expert"),
    "context": ("cp", "sp", "context"),
}
"""What the axes are for, and how they are usually called."""

SHORT = {"context": "context_parallel", "expert": "expert_parallel"}
"""Shorter names of recipes in a composition."""

_PART = re.compile(r"(\w+)\s*\(([^()]*)\)")
_JOINED = ("tensor", "sequence", "tokens_again", "experts", "context", "heads", "keys_again")
"""What a composition splits, or gathers again, if one of its recipes does."""
_SHARED = ({"shard", "context"}, {"shard", "expert"})
"""What one axis may be for at once: devices that share a sequence hold the same weights, and devices with experts of
their own the same other weights."""


@dataclass(frozen=True)
class Recipe:
    """What a named plan splits: `zero` is ZeRO's stage, whose third gathers parameters for the backward pass `again`;
    `tensor` and `experts` say what further axes are for. With `sequence` tokens lie in parts between products, which
    gather them for the backward pass with `tokens_again`. With `hybrid` ZeRO splits over its own axis of two for the
    batch. With `context` sequences are split, and attention takes all keys, for the backward pass with `keys_again`
    anew, or with `heads` runs by heads. `axes` has the mesh axes by what they are for, where they are settled."""

    name: str
    words: str
    zero: int = 0
    again: bool = False
    tensor: bool = False
    sequence: bool = False
    tokens_again: bool = False
    experts: bool = False
    hybrid: bool = False
    context: bool = False
    heads: bool = False
    keys_again: bool = False
    axes: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Axes:
    """The mesh axes by what they split: the batch, what ZeRO splits besides, weights, experts, sequences. Those of
    experts split the batch and what ZeRO splits, too, but for the experts' own weights."""

    data: Refs
    shard: Refs
    tensor: Refs
    expert: Refs
    context: Refs = ()

    @staticmethod
    def of(recipe: Recipe, mesh: Mesh, given: Mapping[str, str] | None = None) -> Axes:
        """The axes that the recipe or `given` names; else those with usual names, else in mesh order.

        Raises:
            PlanError: a word or an axis that does not exist, or the mesh has no axis for what the plan splits.
        """
        known = dict(recipe.axes) or {word: (name,) for word, name in (given or {}).items()}
        _check(recipe, mesh, known)
        if not recipe.axes:
            known |= _usual(recipe, mesh, known)

        def refs(word: str) -> Refs:
            return tuple(mesh.axis(name) for name in known.get(word, ()) if mesh.sizes[name] > 1)

        context = refs("context") if recipe.context else ()
        shard = refs("shard") if recipe.hybrid else refs("data")
        data = refs("data") + (tuple(ref for ref in shard if ref not in context) if recipe.hybrid else ())
        # Where experts are split, so are the tokens: each rank sends its own to their experts.
        expert = refs("expert") if recipe.experts else ()
        more = tuple(ref for ref in expert if ref not in data)
        return Axes(
            data + more,
            shard + tuple(ref for ref in more if ref not in shard),
            refs("tensor") if recipe.tensor else (),
            expert,
            context,
        )

    def shown(self, mesh: Mesh, hybrid: bool) -> str:
        """What lies over which axes, for people."""
        parts = {"data": self.data, "shards": self.shard if hybrid else ()}
        parts |= {"tensor": self.tensor, "experts": self.expert, "sequence": self.context}
        used = (f"{word} over {'.'.join(map(mesh.show_ref, refs))}" for word, refs in parts.items() if refs)
        return ", ".join(used) or "nothing is split"


def _check(recipe: Recipe, mesh: Mesh, given: Mapping[str, tuple[str, ...]]) -> None:
    for word, names in given.items():
        for axis in names:
            if word not in USUAL or axis not in mesh.sizes:
                shown = ", ".join(f"{name}={size}" for name, size in mesh.axes)
                raise PlanError(
                    f"the named plan {recipe.name!r} cannot use axes {word}={axis}: words are {', '.join(USUAL)}, "
                    f"and the mesh has {shown}"
                )


def _usual(recipe: Recipe, mesh: Mesh, given: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Axes for all that the recipe splits."""
    found: dict[str, str | None] = {word: names[0] for word, names in given.items()}
    words = ["data", *_wanted(recipe)] if recipe.hybrid else ["data", "tensor", "expert"]
    words += ["context"] if recipe.context else []
    for word in reversed(words):
        taken = set(found.values())
        free = (name for name in USUAL[word] if name in mesh.sizes and name not in taken)
        found[word] = found.get(word) or next(free, None)
    rest = [name for name, size in mesh.axes if size > 1 and name not in found.values()]
    for word in _wanted(recipe):
        if found[word] is None:
            found[word] = rest.pop() if rest else (found["data"] if recipe.experts else None)
    if found["data"] is None:
        found["data"] = rest[0] if rest else found["expert"] if recipe.experts else None
    missing = next((word for word in (*_wanted(recipe), "data") if found[word] is None), None)
    if missing is not None and mesh.devices > 1 and (missing != "data" or recipe.hybrid or not _wanted(recipe)):
        raise PlanError(f"the named plan {recipe.name!r} needs a {missing} axis, and mesh '{mesh}' has none left")
    return {word: (name,) for word, name in found.items() if name is not None}


def _wanted(recipe: Recipe) -> list[str]:
    """What the recipe needs an axis for besides the batch."""
    used = {"tensor": recipe.tensor, "expert": recipe.experts, "shard": recipe.hybrid, "context": recipe.context}
    return [word for word, is_used in used.items() if is_used]


# -- compositions


def composed(text: str, recipes: Mapping[str, Recipe]) -> Recipe:
    """The recipe of a composition: recipes joined by '+', each with its mesh axes in parentheses.

    Raises:
        PlanError: something else, an axis for two recipes, or two recipes that split the same.
        UnknownNameError: a recipe that does not exist.
    """
    parts = list(_parts(text, recipes))
    axes: dict[str, tuple[str, ...]] = {}
    for part, names in parts:
        for word, own in _uses(text, part, names):
            _no_axis_twice(text, axes, word, own)
            if word in axes and word != "data":
                raise PlanError(f"the composed plan {text!r} has two recipes that split over {word} axes; name one")
            axes[word] = axes.get(word, ()) + own
    chosen = [part for part, _ in parts]
    sharding = [part for part in chosen if part.zero]
    return replace(
        sharding[0] if sharding else chosen[0],
        name=text,
        words="; ".join(part.words for part in chosen),
        hybrid="shard" in axes,
        axes=tuple(axes.items()),
        **{name: any(getattr(part, name) for part in chosen) for name in _JOINED},
    )


def _parts(text: str, recipes: Mapping[str, Recipe]) -> Iterator[tuple[Recipe, tuple[tuple[str, ...], ...]]]:
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        names = tuple(tuple(name.strip().split(".")) for name in match[2].split(",")) if match else ()
        if match is None or not all(name.isidentifier() for own in names for name in own):
            raise PlanError(
                f"cannot read {part.strip()!r} of the composed plan {text!r}; write recipes with their mesh axes, such "
                "as 'zero3(dp) + megatron_sp(tp)'"
            )
        name = SHORT.get(match[1], match[1])
        if name not in recipes:
            near = get_close_matches(match[1], recipes, n=2)
            meant = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(recipes)}"
            raise UnknownNameError(f"the composed plan {text!r} has the unknown recipe {match[1]!r}; {meant}")
        yield recipes[name], names


def _no_axis_twice(text: str, axes: Mapping[str, tuple[str, ...]], word: str, own: tuple[str, ...]) -> None:
    taken = {name for other, names in axes.items() if {word, other} not in _SHARED for name in names}
    twice = next((name for i, name in enumerate(own) if name in taken or name in own[:i]), None)
    if twice is not None:
        raise PlanError(
            f"the composed plan {text!r} uses the axis {twice!r} twice; an axis is for one recipe, or for ZeRO and for "
            "sequences or experts"
        )


def _uses(text: str, part: Recipe, names: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a recipe uses its axes for, several as one where a dot joins them: the last for its own, others for the
    batch."""
    own = ["shard"] if part.zero else ["tensor"] if part.tensor else ["expert"] if part.experts else []
    own = ["shard", "tensor"] if part.zero and part.tensor else ["context"] if part.context else own
    own = ["shard", "expert"] if part.zero and part.experts else own
    if len(names) < len(own):
        given = ", ".join(map(".".join, names))
        raise PlanError(f"the composed plan {text!r} gives {part.name!r} the axes {given}; it needs "
                        f"{len(own)}: {', '.join(own)}")  # fmt: skip
    last = len(names) - len(own)
    yield from zip(own, names[last:], strict=True)
    if last:
        yield "data", tuple(name for joined in names[:last] for name in joined)
