"""Running engines under a fault, and counting what they notice of it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN_TESTS = ROOT / "plugins" / "adapters_flashinfer" / "tests"
sys.path[:0] = [str(PLUGIN_TESTS)]
warnings.simplefilter("ignore")

CALLS = {"sglang": 10, "vllm": 5}
"""How often one step of an engine runs a function of FlashInfer that an adapter knows."""


class Kernel(Exception):
    """Raised by a kernel that is told to."""


class Rig:
    """Engines, what they should compute, and what went wrong.

    Attributes
    ----------
    calls : int
        Of patched functions.
    ours : list of str
        What was raised that the original would not have raised.
    wrong : list of str
        Which outputs differed from those of the originals.
    solutions : collections.Counter
        How often each solution ran.
    """

    def __init__(self, cpu):
        from engine_sims import answers, drive

        self.cpu, self.drive = cpu, drive
        self.calls, self.ours, self.wrong = 0, [], []
        self.solutions = Counter()
        self.mapping = answers.solutions(self.solutions)
        self._renew_lock()
        # A thread of the parent may hold it, and is not in the child.
        os.register_at_fork(after_in_child=self._renew_lock)
        self.may_capture = True
        self.before = drive.classes()
        modules = {name: drive.load(drive.ENGINES[name][0]) for name in CALLS}
        self.make = {name: partial(each.Engine, self.capture) for name, each in modules.items()}
        self.plain = {name: make().step() for name, make in self.make.items()}

    def _renew_lock(self):
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def capture(self):
        """Play a capture, where that does not disturb other threads."""
        with self.drive.capturing(self.cpu) if self.may_capture else contextlib.nullcontext():
            yield

    def run(self, times=3, engines=tuple(CALLS)):
        """Have each engine make its steps, and compare."""
        for name in engines:
            engine = self.make[name]()
            for _ in range(times):
                self.step(name, engine)

    def step(self, name, engine):
        try:
            wrong = self.drive.differing(self.plain[name], engine.step())
        except BaseException:  # noqa: BLE001 - without us nothing was raised
            wrong = []
            with self._lock:
                self.ours.append(traceback.format_exc()[-2000:])
        with self._lock:
            self.calls += CALLS[name]
            self.wrong += [f"{name}: {each}" for each in wrong]

    def raises(self, function, *args, **kwargs):
        """Return what a call raises, as text; None if it does not."""
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever the original raises
            return f"{type(error).__name__}: {error}"
        return None

    def same_error(self, function, expected):
        """Make a call that the original refuses, and compare what is raised."""
        found = self.raises(function)
        self.calls += 1
        if found != expected:
            self.ours.append(f"raised {found!r} in place of {expected!r}")

    def left_behind(self):
        """Return the attributes that are not the original objects."""
        return self.drive.same_objects(self.before, self.drive.classes())

    def summary(self):
        return {
            "calls": self.calls,
            "ours": self.ours,
            "wrong": self.wrong,
            "left behind": self.left_behind(),
            "solutions": dict(self.solutions),
        }
