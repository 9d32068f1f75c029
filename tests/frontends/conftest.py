"""JAX has eight devices here, for programs that are written for several."""

from __future__ import annotations

import os

# Read when JAX starts, which is when the first test uses it.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
