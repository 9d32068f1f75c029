"""A whole random module: meshes, functions that are called, and main."""

from __future__ import annotations

from random import Random

# Imported for what they register.
from tests.propagate.generate import (  # noqa: F401
    annotations,
    collectives,
    contracting,
    custom,
    elementwise,
    indexing,
    linear,
    shaping,
    structures,
)
from tests.propagate.generate.functions import function
from tests.propagate.generate.scope import EMPTY, MAXIMAL, Module, Scope
from tests.propagate.generate.shardings import axes_of, sharding
from tests.propagate.generate.structure_table import fill
from tests.propagate.generate.table import Maker

FEATURES = (
    "sub_axes",
    "priorities",
    "replicated",
    "unreduced",
    "constraints",
    "groups",
    "barriers",
    "reshards",
    "while",
    "case",
    "manual",
    "calls",
    "tokens",
    "rules",
    "meshes",
    "orders",
    "maximal",
    "dynamic",
    "inlined",
)
# Not for the whole pipeline, which adds edges to these and then finds two on one value.
ALONE = ("edges", "named", "function_edges")
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
        features: of FEATURES and ALONE; about a third of FEATURES by default.
        size: how many things main holds.
    """
    chosen = frozenset(name for name in FEATURES if random.random() < 0.35) if features is None else features
    module = Module(random, {"mesh": dict(random.choice(MESHES))}, {}, sharding, chosen)
    _more_meshes(module)
    main = Scope(module)
    fill(main, random.randint(2, 10) if size is None else size)
    results = _results(main)
    texts = [function(main, "main", results, "public", 0.5), *module.functions]
    if module.chance(0.2):
        random.shuffle(texts)
    meshes = [_mesh(name, axes, module.orders.get(name, [])) for name, axes in module.meshes.items()]
    if module.chance(0.1):
        return "\n".join(random.sample([*meshes, *texts], len(meshes) + len(texts))) + "\n"
    return "\n".join([*meshes, *texts]) + "\n"


def catalogue(maker: Maker, random: Random) -> str:
    """A module of a dozen operations that one maker writes, with shardings on many of them."""
    module = Module(random, {"mesh": dict(MESHES[0])}, {}, sharding, frozenset({"tokens"}))
    main = Scope(module)
    for _ in range(12):
        maker(main)
    texts = [function(main, "main", main.values or [main.any()], "public", 0.7), *module.functions]
    return "\n".join([_mesh("mesh", MESHES[0], []), *texts]) + "\n"


def _more_meshes(module: Module) -> None:
    axes = module.meshes["mesh"]
    if "meshes" in module.features:
        module.meshes["mesh_other"] = {"x": 2, "w": 4}
    if "orders" in module.features:
        count = 1
        for size in axes.values():
            count *= size
        for name in module.random.sample(["mesh", "mesh_turned"], module.random.randint(1, 2)):
            module.meshes[name] = dict(axes)
            module.orders[name] = list(range(count))[::-1] if count > 1 else []
    if "maximal" in module.features:
        module.meshes |= {MAXIMAL: {}, EMPTY: {}}
        module.orders[MAXIMAL] = [1]


def _mesh(name: str, axes: dict[str, int], order: list[int]) -> str:
    return f"sdy.mesh @{name} = {axes_of(axes, order)}"


def _results(scope: Scope) -> list:
    """What is returned: some values, among them most of those that nothing uses, so that not all is dead code."""
    found = [scope.any()]
    found += [value for value in scope.values if value not in scope.used and scope.module.chance(0.6)]
    return list(dict.fromkeys(found)) + [scope.any() for _ in range(scope.random.randint(0, 1))]
