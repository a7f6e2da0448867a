"""What must be settled before any test module is imported."""

from __future__ import annotations

import os
from pathlib import Path

# Triton decides when it is imported whether it compiles or interprets, and other tests may import
# it before those of the kernels do.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
