"""JAX has eight devices here, for programs that are written for several."""

from __future__ import annotations

import os

from tests.xla_flags import with_devices

# Read when JAX starts, which is when the first test uses it.
os.environ["XLA_FLAGS"] = with_devices(os.environ.get("XLA_FLAGS", ""), 8)
