"""Random sdy shardings as text."""

from __future__ import annotations

from tests.propagate.generate.scope import Module, Shape


def pieces(module: Module, mesh: dict[str, int], manual: tuple[str, ...]) -> list[str]:
    """The axes of the mesh in random order, some cut in two sub-axes of which one or both are kept."""
    random = module.random
    found: list[str] = []
    for name, size in mesh.items():
        if name in manual:
            continue
        cuts = [k for k in range(2, size) if size % k == 0]
        if cuts and "sub_axes" in module.features and module.chance(0.3):
            cut = random.choice(cuts)
            parts = [f'"{name}":(1){cut}', f'"{name}":({cut}){size // cut}']
            found.extend(parts if module.chance(0.5) else [random.choice(parts)])
        else:
            found.append(f'"{name}"')
    random.shuffle(found)
    return found


def sharding(module: Module, shape: Shape, manual: tuple[str, ...] = (), closed: bool = False) -> str:
    """`<@mesh, [{"x", ?}, {}p1], replicated={...}>` for a tensor of that shape."""
    random = module.random
    name = random.choice(list(module.meshes)) if module.chance(0.1) else next(iter(module.meshes))
    mesh = module.meshes[name]
    free = pieces(module, mesh, manual)
    dims = []
    for _ in shape:
        count = random.choice((0, 0, 1, 1, 2))
        axes = [free.pop() for _ in range(count) if free]
        axes = _separate(axes)
        is_open = not closed and module.chance(0.6)
        priority = ""
        if "priorities" in module.features and (axes or is_open) and module.chance(0.4):
            priority = f"p{random.choice((0, 1, 1, 2, 5))}"
        dims.append("{" + ", ".join(axes + ["?"] * is_open) + "}" + priority)
    lists = _lists(module, mesh, free, manual) if shape else ""
    return f"<@{name}, [{', '.join(dims)}]{lists}>"


def _separate(axes: list[str]) -> list[str]:
    """Neighbours that would have to be merged are not put side by side: keep the first."""
    kept: list[str] = []
    for axis in axes:
        if kept and ":" in axis and kept[-1].partition(":")[0] == axis.partition(":")[0]:
            continue
        kept.append(axis)
    return kept


def _lists(module: Module, mesh: dict[str, int], free: list[str], manual: tuple[str, ...]) -> str:
    text = ""
    for word, feature, share in (("replicated", "replicated", 0.15), ("unreduced", "unreduced", 0.05)):
        if feature in module.features and free and module.chance(share):
            chosen = [free.pop() for _ in range(module.random.randint(1, len(free)))]
            chosen = _unmergeable(sorted(chosen, key=lambda axis: _order(mesh, axis)))
            text += f", {word}={{{', '.join(chosen)}}}"
    return text


def _unmergeable(axes: list[str]) -> list[str]:
    kept: list[str] = []
    for axis in axes:
        if not (kept and kept[-1].partition(":")[0] == axis.partition(":")[0]):
            kept.append(axis)
    return kept


def _order(mesh: dict[str, int], axis: str) -> tuple[int, int]:
    name, _, rest = axis.partition(":")
    pre = int(rest[1 : rest.index(")")]) if rest else 1
    return list(mesh).index(name.strip('"')), pre
