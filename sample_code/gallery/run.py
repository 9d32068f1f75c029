"""Runs the gallery: each case by its peer and by autoshard, a page for each and an index.

    python sample_code/gallery/run.py [-o docs/gallery] [--ours] [NAME ...]

Needs the extras torch and jax. Pages hold what was measured in this very run; nothing in them is written by hand but a
case's program, its title and what its thread says.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")
os.environ["JAX_PLATFORMS"] = "cpu"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import numpy as np  # noqa: E402
from case import Case, Side  # noqa: E402

SEED = 3


def arrays_of(case: Case) -> list[np.ndarray]:
    """Inputs: whole numbers count up from 0 as far as dims allow, others are normal."""
    random = np.random.default_rng(SEED)
    return [one[0] if len(one) == 1 else _array(random, *one) for one in case.inputs]


def _array(random: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    if np.issubdtype(dtype, np.bool_):
        return random.random(shape) < 0.5
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, 2 if not shape else 16, shape).astype(dtype)
    if np.issubdtype(dtype, np.complexfloating):
        return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(dtype)
    return random.normal(size=shape).astype(dtype)


def torch_results(names: list[str], peers: bool) -> dict[str, tuple[Case, Side, Side]]:
    """Cases of DTensor, and redistributions; forked before JAX is there, whose threads do not survive that."""
    import ours
    import theirs_dtensor
    import torch
    from dtensor_cases import DTENSOR
    from move_cases import MOVES

    cases = [one for one in (*DTENSOR, *MOVES) if not names or one.name in names]
    arrays = {one.name: arrays_of(one) for one in cases}
    wholes = {one.name: np.asarray(one.program(*map(torch.tensor, arrays[one.name]))) for one in cases}
    theirs = theirs_dtensor.measured(cases, arrays, wholes) if peers else dict.fromkeys(wholes, Side())
    found = {}
    for one in cases:
        given = arrays[one.name]
        own = ours.of_move(one, given[0]) if one in MOVES else ours.of_torch(one, given, wholes[one.name])
        found[one.name] = one, theirs[one.name], own
    return found


def jax_results(names: list[str], peers: bool) -> dict[str, tuple[Case, Side, Side]]:
    """Cases of XLA."""
    import jax.numpy as jnp
    import ours
    import theirs_xla
    from xla_cases import XLA

    found = {}
    for one in XLA:
        if names and one.name not in names:
            continue
        given = arrays_of(one)
        whole = np.asarray(one.program(*map(jnp.asarray, given)))
        own = ours.of_module(theirs_xla.lowered(one), given, whole)
        found[one.name] = one, theirs_xla.measure(one, given, whole) if peers else Side(), own
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="Folder of the pages; default: none are written.")
    parser.add_argument("--ours", action="store_true", help="Leave the peers out.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="Cases; default: all.")
    chosen = parser.parse_args()
    from pages import side_text, told, write

    found = {}
    for results in (torch_results, jax_results):
        found |= (measured := results(chosen.names, not chosen.ours))
        for case, theirs, ours in measured.values():
            print(told(case, theirs, ours) if not chosen.ours else f"{case.name}: {side_text(ours)}", flush=True)
    if chosen.output is not None and not chosen.ours:
        write(found, chosen.output)
    wrong = [name for name, (_, _, ours) in found.items() if ours.refused or not ours.right]
    print(
        f"{len(found)} cases, ours right in {len(found) - len(wrong)}{': not in ' + ', '.join(wrong) if wrong else ''}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # at once: the threads of torch and XLA may wait for each other where both end in one process
