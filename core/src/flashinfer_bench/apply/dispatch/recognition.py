"""The quickest way there is here to recognise calls like those seen before.

The helper that was compiled on this machine (`native`) is quickest. Without it there is what
torch.compile asks before each call of a compiled function, whether the arguments are like those
that it was compiled for: `torch._C._dynamo.guards.TensorGuards` compares exact type, dispatch keys
(with those of the thread), dtype, device, shape, strides and ``requires_grad`` in one call into
C++. It is not public; so it is tried out before its first use, in a process of its own with
releases of torch in which it may have changed, and done without if it is missing or does not do
exactly that. What it passes over has to be asked apart: grad mode, the modes of compilers
(`Facts.modes`), forward-mode gradients, and whether what is written shares memory.

It asks any tensor for its sizes. One that has none, because it is a nested tensor of the strided
kind or stands for one in a transform, raises in C++ where nothing catches that, and the process
ends. Such tensors are turned away before; but for one that a program has kept from a transform
over nested tensors beyond its end, with which torch can do nothing either.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench import env
from flashinfer_bench.apply.dispatch import native
from flashinfer_bench.apply.dispatch.ordinary import facts, in_fresh_thread
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.errors import StorageError
from flashinfer_bench.routing.generated import compile_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    Check = Callable[..., bool]

logger = logging.getLogger(__name__)

KNOWN_RELEASES = ("2.13",)
"""Releases of torch with whose checker nothing goes wrong that could end the process."""

_WITHIN_S = 120.0


class Recognition(NamedTuple):
    """Makes checks of the tensors of a call, and of what it returns.

    Attributes
    ----------
    make : callable
        ``make(tensors, written, anywhere=False)`` returns a check that passes for tensors like
        these; `written` are positions of those that are written to. With ``anywhere=True`` the
        state of the thread is not asked.
    sees_all : bool
        Whether a check also asks for modes of the thread, for grad mode, and whether tensors that
        are written to share memory. If not, that is asked apart.
    """

    make: Callable[..., Check]
    sees_all: bool


def recognition() -> Optional[Recognition]:
    """Return the quickest way that works here; None if calls must be examined in Python."""
    helper = native.maker()
    if helper is not None:
        return Recognition(helper, sees_all=True)
    checker = tensor_guards()
    return None if checker is None else by_torch(checker)


def recogniser(
    by: Optional[Recognition],
    tensors: Sequence[Any],
    written: Sequence[int] = (),
    *,
    anywhere: bool = False,
) -> Optional[Check]:
    """Return a check that passes for the tensors of a call like these, and for no others.

    Strides of dimensions with one element may differ: those of slices do.

    Parameters
    ----------
    by : Recognition, optional
        How to recognise them.
    tensors : sequence of torch.Tensor
        Those of a call, of which there should be one at least.
    written, anywhere
        See `Recognition`.

    Returns
    -------
    callable or None
        Takes as many arguments as there are tensors, of any type, and keeps no tensor alive. None
        if such tensors cannot be recognised.
    """
    if by is None or not tensors:
        return None
    try:
        check = by.make(tensors, written, anywhere=anywhere)
        return check if check(*tensors) is True else None
    except (RuntimeError, TypeError, ValueError):  # a tensor that cannot be described
        return None


def recogniser_of(by: Optional[Recognition], values: Sequence[Any]) -> Check:
    """Return a check that passes for outputs like these; one that never does, if need be."""
    plain = all(facts().is_tensor(each) for each in values)
    return (recogniser(by, values, anywhere=True) if plain else None) or never


def never(*_args: Any) -> bool:
    """Return False."""
    return False


# ------------------------------------------------------------------------ the checker of torch

_SOURCE = """\
def check({arguments}):
    try:
        if transformed() or {nested}:
            return False
    except Exception:  # no tensor
        return False
    return {same}compare({distinct})
"""


def by_torch(checker: Callable[..., Any]) -> Recognition:
    """Return recognition by what `tensor_guards` returned."""
    return Recognition(partial(_check_by_torch, checker), sees_all=False)


def _check_by_torch(
    checker: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    written: Sequence[int] = (),
    *,
    anywhere: bool = False,  # it looks at the thread's keys as they show in tensors, no more
) -> Check:
    import torch

    if any(sum(tensors[index] is each for each in tensors) > 1 for index in written):
        return never  # what is written to shares its memory
    names = [f"a{index}" for index in range(len(tensors))]
    # The checker wants each tensor to be another object.
    first: dict[int, str] = {}
    same = ""
    for name, tensor in zip(names, tensors, strict=True):
        if first.setdefault(id(tensor), name) != name:
            same += f"{name} is {first[id(tensor)]} and "
    distinct = [tensors[names.index(name)] for name in first.values()]
    # Both must be given: without them it reads what is not there.
    sizes, strides = [list(each.shape) for each in distinct], [_strides(each) for each in distinct]
    made = checker(*distinct, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    source = _SOURCE.format(
        arguments=", ".join(names),
        nested=" or ".join(f"{name}.is_nested" for name in first.values()),
        same=same,
        distinct=", ".join(first.values()),
    )
    transformed = torch._C._are_functorch_transforms_active
    namespace = {"transformed": transformed, "compare": made.check}
    return compile_source(source, "check", namespace, "check of tensors")


def _strides(tensor: torch.Tensor) -> list[Optional[int]]:
    """Return strides, None where any will do: no element is found by them."""
    some = tensor.numel() > 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride if some and size > 1 else None for size, stride in pairs]


@lru_cache(maxsize=1)
def tensor_guards() -> Optional[Callable[..., Any]]:
    """Return the checker of torch, if it does what is wanted of it here."""
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError as error:
        logger.debug("guards in Python: %s", error)
        return None
    checker: Callable[..., Any] = TensorGuards
    problem = problem_elsewhere() or in_fresh_thread(problem_of, checker)
    if problem is not None:
        logger.debug("guards in Python: TensorGuards %s", problem)
        return None
    return checker


# ------------------------------------------------------------------------------ trying it out


def problem_of(checker: Callable[..., Any]) -> Optional[str]:
    """Try a checker of torch out, and say what is wrong with it, if anything."""
    return comparing_problem(lambda *tensors: _check_by_torch(checker, tensors))


def comparing_problem(make: Callable[..., Check]) -> Optional[str]:
    """Say what is wrong with the checks that ``make(*tensors)`` returns, if anything."""
    import torch

    x, y = torch.zeros(4, 8), torch.zeros(4, 8)
    try:
        single, double = make(x), make(x, y)
        if single(y) is not True or double(y, x) is not True:
            return "does not recognise a tensor"
        for what, other in _others(x):
            if single(other) is not False or double(x, other) is not False:
                return f"takes {what} for a tensor"
        with torch.inference_mode():
            if single(torch.zeros(4, 8)) is not False:
                return "does not tell a tensor of inference mode"
    except Exception as error:  # noqa: BLE001  # whatever a changed interface may raise
        return f"raised {type(error).__name__}: {error}"
    return None


def _others(x: torch.Tensor) -> Iterator[tuple[str, Any]]:
    """Yield what differs from `x` in one respect."""
    import torch

    yield "nothing", None
    yield "a number", 3
    yield "a list", [[0.0] * 8] * 4
    yield "another dtype", x.double()
    yield "another dtype of one size", x.int()
    yield "another size", torch.zeros(5, 8)
    yield "a smaller size", torch.zeros(1, 8)
    yield "another rank", torch.zeros(4, 8, 1)
    yield "a transposed tensor", torch.zeros(8, 4).t()
    yield "a slice", torch.zeros(4, 16)[:, ::2]
    yield "an expanded tensor", torch.zeros(1, 8).expand(4, 8)
    yield "another device", torch.zeros(4, 8, device="meta")
    yield "requires_grad", torch.zeros(4, 8, requires_grad=True)
    yield "a parameter", torch.nn.Parameter(x.clone(), requires_grad=False)
    yield "a subclass", x.clone().as_subclass(type("Own", (torch.Tensor,), {}))
    yield "a negated view", torch._neg_view(x)
    yield "a sparse tensor", x.to_sparse()


def problem_elsewhere() -> Optional[str]:
    """Return why the checker of this torch may not even be tried out here; None if it may.

    What is not public may have changed in a release that is not known in a way that ends the
    process. The first process to ask starts another one then, waits for as long as importing torch
    takes, and keeps what came of it in the cache.
    """
    import torch

    if ".".join(torch.__version__.split(".")[:2]) in KNOWN_RELEASES:
        return None
    about = [torch.__version__, str(torch.version.git_version), torch.__file__, sys.version]
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
    path = env.cache_path() / "apply" / f"checker-{digest}.json"
    problem: Optional[str]
    try:
        problem = json.loads(path.read_text())
    except (OSError, ValueError):  # there is none, or it is damaged
        status, printed = _run_elsewhere()
        if status < 0:
            problem = f"ended the process that tried it out (exit status {status})"
        else:
            try:
                problem = json.loads(printed.splitlines()[-1])
            except (ValueError, LookupError):
                return f"could not be tried out in another process: {printed}"
        with suppress(StorageError):
            replace_file(path, json.dumps(problem).encode())
    return problem


# In isolated mode nothing of the folder that a program happens to be in is imported.
_START = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from flashinfer_bench.apply.dispatch import recognition\n"
    "from torch._C._dynamo.guards import TensorGuards\n"
    "print(json.dumps(recognition.problem_of(TensorGuards)))\n"
)


def _run_elsewhere() -> tuple[int, str]:
    """Try it out in another process; return how that ended, and what it printed."""
    if not sys.executable or getattr(sys, "frozen", False):
        return 1, "there is no interpreter to try it out with"
    quiet = {"FIB_ENABLE_APPLY": "0", "FIB_ENABLE_TRACING": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _START, json.dumps(sys.path)],
            env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 1, str(error)
    logger.debug("trying out the checker of torch: %s", done)
    return done.returncode, done.stdout.decode(errors="replace")
