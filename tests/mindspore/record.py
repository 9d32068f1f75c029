"""Evaluates the lines of `cases.py` with MindSpore 2.10.0 and writes recorded.npz and signatures.json beside this file.

    python tests/mindspore/record.py        # in an environment that has mindspore==2.10.0

Only this script needs MindSpore; the tests read what it wrote.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PAGES = (
    "mindspore", "mindspore.nn", "mindspore.ops", "mindspore.train", "mindspore.communication", "mindspore.parallel",
    "mindspore.common.initializer", "mindspore.parallel.auto_parallel", "mindspore.ops.operations.nn_ops",
)  # fmt: skip
sys.path.insert(0, str(HERE))


def flat(result: Any) -> list[np.ndarray]:
    """The arrays of a result, in order."""
    if isinstance(result, tuple | list):
        return [array for one in result for array in flat(one)]
    return [result.asnumpy() if hasattr(result, "asnumpy") else np.asarray(result)]


def signature(kind: Any) -> list[list[Any]]:
    """Names and defaults of a callable's arguments without `self`; a default is text, None if there is none."""
    function = inspect.unwrap(kind.__init__) if inspect.isclass(kind) else inspect.unwrap(kind)
    found = []
    for one in inspect.signature(function).parameters.values():
        if one.name == "self" or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        default = None if one.default is one.empty else str(one.default)
        found.append([one.name, default, one.kind is one.KEYWORD_ONLY])
    return found


def main() -> None:
    from cases import LINES, RAISES, names

    import mindspore as ms
    from mindspore import nn, ops

    known = names(ms, nn, ops)
    values: dict[str, np.ndarray] = {}
    failed = []
    for line in LINES:
        try:
            for i, array in enumerate(flat(eval(line, dict(known)))):  # noqa: S307
                values[f"{line}|{i}"] = array
        except Exception as error:
            failed.append((line, str(error).splitlines()[0][:150]))
    for line, error in failed:
        print("MindSpore refuses", line, error)
    passed = []
    for line in RAISES:
        try:
            eval(line, dict(known))  # noqa: S307
        except Exception:
            continue
        passed.append(line)
    print("MindSpore takes", passed)
    np.savez_compressed(HERE / "recorded.npz", **values)
    told = {page: signatures(page) for page in PAGES}
    (HERE / "signatures.json").write_text(json.dumps(told, separators=(",", ":")) + "\n")


def signatures(page: str) -> dict[str, Any]:
    """Of every public name of a module, what `signature` tells; None where it has no signature, or takes anything."""
    module = import_module(page)
    found: dict[str, Any] = {}
    for name in dir(module):
        kind = getattr(module, name, None)
        if name.startswith("_") or not callable(kind):
            continue
        try:
            found[name] = signature(kind) or None
        except (TypeError, ValueError):
            found[name] = None
    return found


if __name__ == "__main__":
    main()
