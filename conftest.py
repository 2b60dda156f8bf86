"""What holds for all tests of the repository."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

# Tests that run solutions lock devices, and the folder of the locks is common to all processes of
# the machine: without one of its own, each process of a test run would wait for all others.
os.environ["FIB_LOCK_PATH"] = tempfile.mkdtemp(prefix="fib-test-locks-")
atexit.register(shutil.rmtree, os.environ["FIB_LOCK_PATH"], ignore_errors=True)

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
