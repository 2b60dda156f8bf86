"""FlashInfer on the CPU: the real package, with only its compiled kernels stood in for.

All of FlashInfer's Python stays as it is: signatures, the glue of plan and run, buffers, aliases.
What is replaced are the getters of compiled modules, and the questions that need a GPU. Each module
of this package stands in for one area and has a function ``install(patch)``.

>>> with cpu_flashinfer("norm") as cpu:
...     flashinfer.norm.rmsnorm(x, w)
...     cpu.calls["norm.rmsnorm"]  # how often the kernel ran
"""

import contextlib
import importlib
import sys
import types
import warnings
from collections import Counter

import torch

_ABSENT = object()


class Patch:
    """Replaces attributes, and puts them back in the reverse order.

    `calls` counts the calls of kernels, by label: ``"norm.rmsnorm"``. `capturing` is what
    `torch.cuda.is_current_stream_capturing` says: set it to play a graph capture.
    """

    def __init__(self):
        self.calls = Counter()
        self.capturing = False
        self._undo = []

    def module(self, name):
        """Return a module, imported if need be; None if this release has none of that name."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as error:
                # A module that is there, but lacks a library, is another matter.
                if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                    raise
                return None

    def set(self, owner, name, value, *, new=False):
        """Replace an attribute of a module, a class or an object.

        It has to be there, unless it is `new`: a stand-in that replaces nothing is a mistake.
        """
        before = vars(owner).get(name, _ABSENT)
        assert new or before is not _ABSENT, f"{owner!r} has no attribute {name!r}"
        self._undo.append((owner, name, before))
        setattr(owner, name, value)

    def set_if_there(self, owner, name, value):
        """Replace an attribute where this release has it."""
        if owner is not None and name in vars(owner):
            self.set(owner, name, value)

    def everywhere(self, original, replacement):
        """Replace a function in each of FlashInfer's modules that took it by value."""
        for name, module in list(sys.modules.items()):
            if module is None or name.partition(".")[0] != "flashinfer":
                continue
            for key, value in list(vars(module).items()):
                if value is original:
                    self.set(module, key, replacement)

    def kernel(self, label, function):
        """Return `function`, with its calls counted under `label`."""

        def counted(*args, **kwargs):
            self.calls[label] += 1
            return function(*args, **kwargs)

        return counted

    def namespace(self, area, **functions):
        """Return what a getter of a compiled module returns: its functions, counted."""
        counted = {name: self.kernel(f"{area}.{name}", each) for name, each in functions.items()}
        return types.SimpleNamespace(**counted)

    def undo(self):
        """Put everything back."""
        while self._undo:
            owner, name, before = self._undo.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


@contextlib.contextmanager
def cpu_flashinfer(*areas):
    """Have FlashInfer run on CPU tensors inside a block; yields a `Patch`.

    Areas are modules of this package: ``"norm"``, ``"decode"``, ``"prefill"``, ``"mla"``.
    """
    patch = Patch()
    try:
        _install_device(patch)
        for area in areas:
            importlib.import_module(f"{__name__}.{area}").install(patch)
        yield patch
    finally:
        patch.undo()


def _install_device(patch):
    """Answer the questions that need a GPU as an H100 does; pinned memory is plain memory."""
    patch.module("flashinfer")
    utils = patch.module("flashinfer.utils")
    empty, initialized = torch.empty, torch.cuda.is_initialized

    def unpinned(*args, pin_memory=False, **kwargs):
        return empty(*args, **kwargs)

    hopper = types.SimpleNamespace(
        name="stand-in",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=80 << 30,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        warp_size=32,
        L2_cache_size=50 << 20,
    )
    patch.set(torch, "empty", unpinned)
    patch.set(torch.cuda, "get_device_properties", lambda device=None: hopper)
    patch.set(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    patch.set(torch.cuda, "is_current_stream_capturing", lambda: patch.capturing)
    patch.set(torch.cuda, "is_initialized", lambda: patch.capturing or initialized())
    patch.everywhere(utils.get_compute_capability, lambda device: (9, 0))
    patch.everywhere(utils.determine_attention_backend, lambda *args, **kwargs: "fa2")
