"""The package as a whole: what it imports, what it names, and the examples in its pages."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import costmodel

MODULES = ["costmodel", *(f"costmodel.{module.name}" for module in pkgutil.iter_modules(costmodel.__path__))]


def test_imports_numpy_scipy_and_msgspec_alone():
    script = (
        "import sys, numpy, importlib\n"
        "before = set(sys.modules)\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) <= {"costmodel", "msgspec", "numpy", "scipy", "typing_extensions"}
    assert "costmodel" in run.stdout.split()


def test_public_names_exist_once():
    assert all(hasattr(costmodel, name) for name in costmodel.__all__)
    assert len(set(costmodel.__all__)) == len(costmodel.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_the_documentation(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
