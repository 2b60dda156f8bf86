"""Stands in for compute-sanitizer: runs the target, and writes what the tools say.

With FAKE_OUTCOME the target does not run, and this is what it would have left.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE, MODE = Path(__file__).parent, os.environ.get("FAKE_MODE", "good")
arguments = sys.argv[1:]

if "--version" in arguments:
    print("NVIDIA (R) Compute Sanitizer\nCopyright (c) 2020-2025 NVIDIA Corporation")
    print("Version 2025.3.1.0 (build 36398880) (public-release)")
    sys.exit()
tool, log = (arguments[arguments.index(name) + 1] for name in ("--tool", "--log-file"))
assert os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
if outcome := os.environ.get("FAKE_OUTCOME"):
    Path(arguments[-1], "work", "outcome.json").write_text(outcome)
    code = int('"done"' not in outcome)
else:
    code = subprocess.run(arguments[arguments.index(sys.executable) :]).returncode
summary = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
text = {
    "good": summary,
    "findings": (HERE / f"{tool}.txt").read_text(),
    "unsupported": "========= Error: Device not supported. Please refer to the documentation\n",
    "silent": "",
}[MODE]
Path(log).write_text(text)
sys.exit(code)
