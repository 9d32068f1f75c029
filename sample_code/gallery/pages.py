"""The pages of the gallery, in Markdown: one for each case, and an index sorted by what the peer does."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from case import EQUAL, LESS, MORE, REFUSES, WRONG, Case, Side, verdict

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.show import show_layout
from costmodel import format_bytes

ORDER = (WRONG, REFUSES, MORE, EQUAL, LESS)
INTRODUCTION = (
    "Open and famous issues of others as small programs: what the peer does, measured in the same run, and what",
    "autoshard does. Bytes are those that a device sends under bandwidth-optimal algorithms. A thread's state is not",
    "today's: some of these are mended, and cases where we are equal or worse stay in.",
    "Programs of DTensor are counted with what makes their output whole on every rank; on gloo it has no all-to-all",
    "and gathers instead, so its bytes on GPUs may be fewer.",
    "`python sample_code/gallery/run.py -o docs/gallery` makes these pages; a test runs all cases.",
)
Found = dict[str, tuple[Case, Side, Side]]


def told(case: Case, theirs: Side, ours: Side) -> str:
    """A case in a line."""
    return f"{case.name}: {peer(case)}: {side_text(theirs)}; autoshard: {side_text(ours)} [{word(theirs, ours)}]"


def peer(case: Case) -> str:
    """Who was measured."""
    module = case.program.__module__
    return (
        f"XLA (jaxlib {version('jaxlib')}, CPU)"
        if module == "xla_cases"
        else f"DTensor (torch {version('torch')}, gloo)"
    )


def side_text(side: Side) -> str:
    """What one does, in words."""
    if side.refused:
        return f"refuses: {side.refused[:300]}"
    counted = ", ".join(f"{count} {kind}" for kind, count in side.collectives.items()) or "no collective"
    sent = f", {format_bytes(side.bytes)} sent by a device" if side.bytes else ""
    return f"{'right' if side.right else 'WRONG numbers'}; {counted}{sent}"


def word(theirs: Side, ours: Side) -> str:
    """The verdict, with the factor of bytes where there is one."""
    found = verdict(theirs, ours)
    if found == MORE and ours.bytes:
        return f"{found} (x {theirs.bytes / ours.bytes:.1f})"
    return found


def page(case: Case, theirs: Side, ours: Side) -> str:
    """The page of a case."""
    lines = [
        f"# {case.title}",
        "",
        f"[{case.issue}]({case.link}): {case.trouble}",
        "",
        f"Mesh `{case.mesh}`. " + " ".join(_lying(case)),
        "",
        "```text",
        case.source,
        "```",
        "",
        "| | what it does |",
        "| --- | --- |",
        f"| {peer(case)} | {_cell(side_text(theirs))} |",
        f"| autoshard | {_cell(side_text(ours))} |",
        "",
        f"Verdict: the peer, beside ours: **{word(theirs, ours)}**.",
        "",
        *_picture(case),
    ]
    return "\n".join(lines)


def _lying(case: Case) -> list[str]:
    shapes = [one[0].shape if len(one) == 1 else one[0] for one in case.inputs]
    found = [
        f"Input {i}, {list(shape)}, lies as `[{layout}]`."
        for i, (shape, layout) in enumerate(zip(shapes, case.layouts, strict=False))
    ]
    return [*found, f"The output shall lie as `[{case.layouts[-1]}]`."] if len(case.layouts) > len(shapes) else found


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _picture(case: Case) -> list[str]:
    """Who holds what of the first input."""
    first = case.inputs[0]
    shape = first[0].shape if len(first) == 1 else first[0]
    if not shape or len(shape) > 2:
        return []
    layout = Layout.parse(case.layouts[0], Mesh.parse(case.mesh))
    return ["Who holds what of input 0:", "", "```text", show_layout(shape, layout), "```", ""]


def write(found: Found, folder: Path) -> None:
    """Write the pages and the index; pages of cases that are no more are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    for name, (case, theirs, ours) in found.items():
        (folder / f"{name}.md").write_text(page(case, theirs, ours), encoding="utf-8")
    rows = sorted(found.values(), key=lambda row: (ORDER.index(verdict(row[1], row[2])), -_factor(row[1], row[2])))
    lines = [
        "# Gallery",
        "",
        *INTRODUCTION,
        "",
        "| case | issue | the peer, beside ours | peer sends | autoshard sends |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case, theirs, ours in rows:
        sent = "" if theirs.refused else format_bytes(theirs.bytes)
        own = "refused" if ours.refused else format_bytes(ours.bytes)
        lines.append(f"| [{case.title}]({case.name}.md) | {case.issue} | {word(theirs, ours)} | {sent} | {own} |")
    (folder / "README.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _factor(theirs: Side, ours: Side) -> float:
    return theirs.bytes / max(ours.bytes, 1.0)
