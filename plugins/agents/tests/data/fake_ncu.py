"""Stands in for ncu: runs the target, and prints pages as ncu does.

With FAKE_OUTCOME the target does not run, and this is what it would have left.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE, MODE = Path(__file__).parent, os.environ.get("FAKE_MODE", "good")
arguments = sys.argv[1:]

if "--version" in arguments:
    print("NVIDIA (R) Nsight Compute Command Line Profiler")
    print("Copyright (c) 2018-2025 NVIDIA Corporation")
    print(f"Version {'2019.5.0' if MODE == 'old' else '2025.3.1.0'} (build 36398880)")
elif "--list-sets" in arguments or "--list-sections" in arguments:
    print(f"Identifier of {arguments[0]}\n--------\ndetailed")
elif "--import" in arguments:
    page = arguments[arguments.index("--page") + 1]
    if MODE == "garbage":
        sys.stdout.buffer.write(b'"ID","Kernel Name"\n"0\xff\x00,\n,,,"\n' + bytes(range(256)) * 99)
    elif "--csv" in arguments:
        print((HERE / f"ncu_{page}.csv").read_text(), end="")
    else:
        print("[4242] python3.12@127.0.0.1\n  large_copy\n    Section: GPU Speed Of Light")
else:
    if MODE == "hang":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", os.environ["MARK"]])
        time.sleep(600)
    if MODE == "huge":
        for _ in range(3000):
            print("x" * 10_000)
    print("==PROF== Connected to process 4242 (/usr/bin/python3.12)")
    if outcome := os.environ.get("FAKE_OUTCOME"):
        Path(arguments[-1], "work", "outcome.json").write_text(outcome)
        code = int('"done"' not in outcome)
    else:
        code = subprocess.run(arguments[arguments.index(sys.executable) :]).returncode
    if MODE == "permission":
        print(
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0."
        )
        sys.exit(1)
    if code:
        print(f"==ERROR== The application returned an error code ({code}).")
    if MODE == "none":
        print("==WARNING== No kernels were profiled.")
    else:
        Path(arguments[arguments.index("--export") + 1]).write_text("report")
    sys.exit(code)
