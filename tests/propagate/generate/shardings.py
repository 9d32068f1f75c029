"""Random sdy shardings as text."""

from __future__ import annotations

from tests.propagate.generate.scope import EMPTY, MAXIMAL, Module, Shape


def axes_of(mesh: dict[str, int], order: list[int]) -> str:
    """`<["x"=2, "y"=4], device_ids=[...]>`"""
    axes = ", ".join(f'"{axis}"={size}' for axis, size in mesh.items())
    return f"<[{axes}]{f', device_ids={order}' if order else ''}>"


def sharding(module: Module, shape: Shape, manual: tuple[str, ...] = ()) -> str:
    """`<@mesh, [{"x", ?}, {}p1], replicated={...}>` for a tensor of that shape; manual axes are not used."""
    name = module.random.choice(list(module.meshes)) if not manual and module.chance(0.15) else "mesh"
    if name == MAXIMAL:
        return f"<@{name}, []>"
    mesh = module.meshes[name]
    if not manual and module.has("inlined", 0.1):
        # One that no symbol stands for.
        mesh, name = {"q": 2, "r": 3}, ""
    free = _pieces(module, mesh, manual)
    closed = module.chance(0.3)
    dims = ", ".join(_dim(module, free, closed) for _ in shape)
    lists = _lists(module, mesh, free) if shape else ""
    shown = f"@{name}"
    if name == "" or (name != EMPTY and module.has("inlined", 0.3)):
        shown = f"mesh{axes_of(mesh, module.orders.get(name, []))}"
    return f"<{shown}, [{dims}]{lists}>"


def _pieces(module: Module, mesh: dict[str, int], manual: tuple[str, ...]) -> list[str]:
    """The axes of the mesh in random order, some cut in two sub-axes of which one or both are kept."""
    random = module.random
    found: list[str] = []
    for name, size in mesh.items():
        cuts = [k for k in range(2, size) if size % k == 0]
        if name in manual:
            continue
        if cuts and module.has("sub_axes", 0.3):
            cut = random.choice(cuts)
            parts = [f'"{name}":(1){cut}', f'"{name}":({cut}){size // cut}']
            found.extend(parts if module.chance(0.5) else [random.choice(parts)])
        else:
            found.append(f'"{name}"')
    random.shuffle(found)
    return found


def _dim(module: Module, free: list[str], closed: bool) -> str:
    count = module.random.choice((0, 0, 1, 1, 2))
    axes = _unmergeable([free.pop() for _ in range(count) if free])
    is_open = not closed and module.chance(0.65)
    priority = ""
    if (axes or is_open) and module.has("priorities", 0.4):
        priority = f"p{module.random.choice((0, 1, 1, 2, 5))}"
    return "{" + ", ".join(axes + ["?"] * is_open) + "}" + priority


def _unmergeable(axes: list[str]) -> list[str]:
    """Neighbours that would have to be written as one are not put side by side: the first is kept."""
    kept: list[str] = []
    for axis in axes:
        if not (kept and ":" in axis and kept[-1].partition(":")[0] == axis.partition(":")[0]):
            kept.append(axis)
    return kept


def _lists(module: Module, mesh: dict[str, int], free: list[str]) -> str:
    text = ""
    for word, share in (("replicated", 0.15), ("unreduced", 0.12)):
        if word == "unreduced" and (len(module.meshes) > 1 or "inlined" in module.features):
            continue  # Shardy dies of unreduced axes where meshes differ.
        if free and module.has(word, share):
            chosen = [free.pop() for _ in range(module.random.randint(1, len(free)))]
            text += f", {word}={{{', '.join(_unmergeable(sorted(chosen, key=lambda axis: _order(mesh, axis))))}}}"
    return text


def _order(mesh: dict[str, int], axis: str) -> tuple[int, int]:
    name, _, rest = axis.partition(":")
    pre = int(rest[1 : rest.index(")")]) if rest else 1
    return list(mesh).index(name.strip('"')), pre
