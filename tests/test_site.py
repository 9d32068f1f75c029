"""The documentation builds as a site without a warning, and its pages load nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import autoshard

ROOT = Path(__file__).resolve().parents[1]


def test_the_reference_has_every_public_name():
    """Each of `autoshard` is on a page of docs/reference/api, by its own name or as the object of its module."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference/api").glob("*.md"))
    there = set(re.findall(r"^::: ([\w.]+)$|heading: ([\w.]+)$", pages, re.MULTILINE))
    listed = {name.removeprefix("autoshard.") for pair in there for name in pair}
    assert set(autoshard.__all__) - {"__version__"} <= listed


def test_the_site_builds_without_warnings(tmp_path):
    """Strict: a link or an anchor that leads nowhere, or a page that no menu has, ends the build."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = [path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")]
    assert len(pages) >= len(list((ROOT / "docs").rglob("*.md")))
    loaded = [
        url
        for page in pages
        for url in re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=[\"'](https?:[^\"']*)", page)
    ]
    assert loaded == []
