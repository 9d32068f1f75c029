"""The pictures of the documentation are what the code draws today."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from xml.etree import ElementTree as etree

import pytest

ROOT = Path(__file__).resolve().parents[1]
_SPEC = importlib.util.spec_from_file_location("docs_pictures", ROOT / "docs" / "pictures.py")
assert _SPEC is not None and _SPEC.loader is not None
pictures = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(pictures)
PLOTS = ("timeline", "memory", "contenders")


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_drawings(name):
    path = pictures.FOLDER / f"{name}.svg"
    if os.environ.get("AUTOSHARD_REWRITE_GOLDEN") == "1":
        path.write_text(pictures.DRAWN[name](), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == pictures.DRAWN[name](), "python docs/pictures.py"


def test_plots(tmp_path):
    """Lines and colours are matplotlib's matter; the words and figures are ours."""
    pictures.plots(pictures.FOLDER if os.environ.get("AUTOSHARD_REWRITE_GOLDEN") == "1" else tmp_path)
    for name in PLOTS:
        if (tmp_path / f"{name}.svg").exists():
            assert words(tmp_path / f"{name}.svg") == words(pictures.FOLDER / f"{name}.svg"), "python docs/pictures.py"


def words(path: Path) -> list[str]:
    found = etree.fromstring(path.read_text(encoding="utf-8")).iter("{http://www.w3.org/2000/svg}text")
    return sorted("".join(one.itertext()).strip() for one in found)


def test_every_picture_is_shown_and_made():
    shown = {
        line.split("pictures/")[1].split(")")[0]
        for page in (ROOT / "docs").glob("*/*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("![") and "pictures/" in line
    }
    assert shown == {f"{name}.svg" for name in (*pictures.DRAWN, *PLOTS)}
    assert shown == {path.name for path in pictures.FOLDER.iterdir()}
