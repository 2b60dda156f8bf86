"""A process that imports everything once, and forks a child for each thing that may end badly.

It reads one JSON object a line from its input, and answers each with one line: the verdict of the
child, or how it died.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


class Nursery:
    """The process, seen from outside."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def child(self, **task: Any) -> dict[str, Any]:
        """Let a child do `task`; see `_work`.

        Parameters
        ----------
        hardware, dataset, cache
            Where the world is, and the folder of caches.
        seed : int
            Of the world.
        kill_after_s : float, optional
            The child gets SIGKILL so long after its start.
        file_limit : int, optional
            No file may become larger, in bytes, as on a full disk.
        as_nobody : bool, optional
            Whether the child gives up its rights, if it has any.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)


def main() -> None:
    """Serve."""
    import torch

    from flashinfer_bench.apply import ApplyRuntime, apply  # noqa: F401 - for the children
    from flashinfer_bench.plugins import default_catalog

    torch.set_num_threads(1)
    default_catalog()
    _warm_up()
    for line in sys.stdin:
        print(json.dumps(_raise_child(json.loads(line))), flush=True)


def _warm_up() -> None:
    """Import what a call needs: a child without rights may not be able to read it."""
    import torch
    from tests.apply_faults import channel
    from tests.apply_faults.drive import enable
    from tests.apply_faults.problems import Argument, Problem
    from tests.apply_faults.world import Made, Record, World

    from flashinfer_bench.apply import apply
    from flashinfer_bench.tensors.devices import this_hardware

    here = this_hardware("cpu")
    problem = Problem("warm", "op", (("C", 4),), (Argument("x0", ("C",), "float32"),), ("y0",))
    record = Record("warm", "warmer", (), 1.0, here, uuid="w")
    world = World(here, {"warm": problem}, {"warmer": Made("warmer", "warm")}, [record])
    channel.reset(problem)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FIB_CACHE_PATH"] = str(Path(folder) / "cache")
        with enable(world.write(Path(folder) / "dataset")):
            for _ in range(3):
                apply("warm", args=(torch.zeros(4),), fallback=torch.clone)
    assert channel.take() == ["warmer"] * 3, "the nursery does not work"


def _raise_child(task: dict[str, Any]) -> dict[str, Any]:
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receive)
        _be_child(task, send)
    os.close(send)
    timer = _killer(pid, task.get("kill_after_s"))
    with os.fdopen(receive) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    timer.cancel()
    answer: dict[str, Any] = json.loads(text) if text else {}
    return {**answer, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}


def _killer(pid: int, after_s: Optional[float]) -> threading.Timer:
    timer = threading.Timer(3600 if after_s is None else after_s, os.kill, (pid, signal.SIGKILL))
    timer.daemon = True
    timer.start()
    return timer


def _be_child(task: dict[str, Any], send: int) -> None:
    code = 1
    try:
        began = time.monotonic()
        answer = _work(task)
        answer["seconds"] = time.monotonic() - began
        os.write(send, json.dumps(answer).encode())
        code = 0
    except BaseException as error:  # noqa: BLE001 - told, whatever it is
        os.write(send, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(code)


def _work(task: dict[str, Any]) -> dict[str, Any]:
    """Enable, call everything, and say what was wrong and how often a solution ran."""
    from tests.apply_faults import channel
    from tests.apply_faults.compiled import call_everything
    from tests.apply_faults.drive import Driver, enable
    from tests.apply_faults.test_substitution import call_all, expected_hits
    from tests.apply_faults.world import random_world

    from flashinfer_bench.apply import apply

    os.environ["FIB_CACHE_PATH"] = task["cache"]
    if task.get("as_nobody") and os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if "file_limit" in task:
        resource.setrlimit(resource.RLIMIT_FSIZE, (task["file_limit"],) * 2)
    if "compiler" in task:
        os.environ["CXX"] = task["compiler"]
        Path(task["victim"]).write_text(str(os.getpid()))
        return call_everything(Path(task["dataset"]))
    world = random_world(random.Random(task["seed"]), task["hardware"])
    channel.reset(*world.problems.values())
    with enable(Path(task["dataset"])):
        styles = ("args", "into")
        tally = call_all(Driver(world, apply), random.Random(task["seed"]), styles)
    hits = len(styles) * expected_hits(world)
    return {"wrong": tally.wrong, "calls": tally.calls, "hits": tally.hits, "wanted": hits}


if __name__ == "__main__":
    main()
