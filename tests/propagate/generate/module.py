"""A whole random module: meshes, private functions, and main."""

from __future__ import annotations

from random import Random

from tests.propagate.generate.scope import Module, Scope
from tests.propagate.generate.shardings import sharding
from tests.propagate.generate.structures import fill, function

FEATURES = (
    "sub_axes",
    "priorities",
    "replicated",
    "constraints",
    "groups",
    "barriers",
    "while",
    "case",
    "manual",
    "calls",
    "meshes",
)
MESHES = (
    {"x": 2, "y": 2, "z": 4},
    {"x": 2, "y": 4},
    {"a": 4, "b": 2},
    {"x": 3, "y": 2},
    {"x": 6, "y": 4, "u": 1},
    {"x": 8},
)


def random_module(random: Random, features: frozenset[str] | None = None, size: int | None = None) -> str:
    """The text of a StableHLO module with sdy shardings.

    Args:
        random: makes all choices.
        features: of FEATURES (and "unreduced"); a random half by default.
        size: how many things main holds.
    """
    chosen = frozenset(name for name in FEATURES if random.random() < 0.4) if features is None else features
    meshes = {"mesh": dict(random.choice(MESHES))}
    if "meshes" in chosen:
        meshes["mesh_other"] = {"x": 2, "w": 4}
    module = Module(random, meshes, features=chosen, sharding=sharding)
    main = Scope(module)
    fill(main, random.randint(2, 10) if size is None else size)
    results = [main.any()] + [main.any() for _ in range(random.randint(0, 2))]
    texts = [function(main, "main", results, "public", 0.5), *module.functions]
    shown = [f"sdy.mesh @{name} = <[{', '.join(f'{chr(34)}{axis}{chr(34)}={n}' for axis, n in mesh.items())}]>" for name, mesh in meshes.items()]
    return "\n".join([*shown, *texts]) + "\n"
