"""What holds for all tests of the repository."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

# Triton decides when it is imported whether the functions of its language are interpreted. Where
# there is no GPU its tests want them so, whichever test of this process imports it first.
if importlib.util.find_spec("triton") and not Path("/dev/nvidiactl").exists():
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    import triton  # noqa: F401 - for what it does when it is imported

    if before is None:
        del os.environ["TRITON_INTERPRET"]
    else:
        os.environ["TRITON_INTERPRET"] = before
