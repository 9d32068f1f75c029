"""The gallery: ours is right in every case; its pages are those of its cases, and each names its thread."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GALLERY, PAGES = ROOT / "sample_code" / "gallery", ROOT / "docs" / "gallery"


def cases() -> list[str]:
    """The names of all cases, read from the text: torch and JAX are not needed for it."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(GALLERY.glob("*_cases.py")))
    return re.findall(r"^def (\w+)\(", "\n".join(texts), re.MULTILINE)


@pytest.mark.torch
@pytest.mark.jax
def test_ours_is_right_in_every_case():
    """Numbers from all ranks equal those of the whole program; nothing is refused."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, str(GALLERY / "run.py"), "--ours"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = [line for line in done.stdout.splitlines() if ": right; " in line]
    assert len(told) == len(cases()) >= 40


def test_each_case_has_its_page():
    names = cases()
    assert len(set(names)) == len(names)
    assert {path.stem for path in PAGES.glob("*.md")} == {*names, "README"}
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    measured = 0
    for name in names:
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert f"]({name}.md)" in index and re.search(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", page)
        assert "| autoshard | right; " in page
        measured += re.search(r"^\| (XLA|DTensor) \(.*\) \| ", page, re.MULTILINE) is not None
    assert measured >= 30
