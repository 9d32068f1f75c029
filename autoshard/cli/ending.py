"""How the command line ends on an error: in a line, or by the user's own lines; `python -m autoshard.cli.ending SCRIPT`
runs a script, with its arguments, that ends so too.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable

from autoshard.cli.words import as_options
from autoshard.util.errors import AutoshardError, MemoryLimitError
from autoshard.util.source import location_text


def end_on_error(work: Callable[[], object]) -> None:
    """Do the work, and end the process where it raises: with 2 for wrong use, 1 for what a script raises or a limit
    of memory that no plan keeps."""
    try:
        work()
    except AutoshardError as error:
        if _debugging():
            raise
        print(f"autoshard: {as_options(str(error))}", file=sys.stderr)
        sys.exit(1 if isinstance(error, MemoryLimitError) else 2)
    except Exception as error:
        listed = location_text(error, until=False)
        if listed is None and isinstance(error, SyntaxError):  # Python's own words have the place in the user's file
            listed = "".join(traceback.format_exception_only(error)).splitlines()
        if _debugging() or listed is None and not isinstance(error, OSError):
            raise
        print("\n".join(listed or [f"autoshard: {error}"]), file=sys.stderr)
        sys.exit(1 if listed else 2)


def _debugging() -> bool:
    return os.environ.get("AUTOSHARD_DEBUG", "0") not in ("", "0")


if __name__ == "__main__":
    del sys.argv[0]
    end_on_error(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))
