"""Rooflines: bytes and operations of a call, and the limit that the device sets for its latency."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from fib_report.scores import geometric_mean
from flashinfer_bench.data.blobs import resolve_blob
from flashinfer_bench.errors import DataError, FibError, PluginLoadError
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fib_report.results import Result
    from flashinfer_bench.data import Definition

TOLD, SIZES, SOME = "op family", "sizes", "some sizes"
_NOT_CACHED = 128 << 20  # bytes, more than any cache holds
_SELECTING = ("int16", "int32", "int64", "bool")


class Work(NamedTuple):
    """The minimum of bytes and operations of a call.

    Attributes
    ----------
    nbytes, operations : int
        Bytes to read and write, and operations; 0 operations if they are not known.
    basis : str
        Where the numbers come from. ``op family``: from an op family; ``sizes``: each input and
        output once, a lower bound; ``some sizes``: the same without tensors of which indices or
        masks select a part.
    dtypes : tuple of str
        Types in which products may be computed.
    """

    nbytes: int
    operations: int
    basis: str
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Roofline:
    """A latency and the limit that the device sets.

    Attributes
    ----------
    work : Work
        The work of its workload.
    latency_ms : float or None
        None if the solution did not pass.
    limit_ms : float or None
        The shortest time in which the device can do the work, according to ``fib calibrate``; None
        without a settled calibration of the device on this machine.
    limited_by : str
        ``bytes``, ``operations`` or ``call`` (the shortest possible call); empty without a limit.
    """

    work: Work
    latency_ms: Optional[float] = None
    limit_ms: Optional[float] = None
    limited_by: str = ""

    @property
    def gb_per_s(self) -> Optional[float]:
        """Bytes over latency, in 10^9 bytes per second."""
        return _over(self.work.nbytes / 1e6, self.latency_ms)

    @property
    def tflop_per_s(self) -> Optional[float]:
        """Operations over latency, in 10^12 per second; None if operations are not known."""
        return _over(self.work.operations / 1e9, self.latency_ms)

    @property
    def share(self) -> Optional[float]:
        """The limit over the latency: 1 is as fast as the device allows.

        None if only a part of the bytes is known, because the limit would be meaningless.
        """
        return None if self.work.basis == SOME else _over(self.limit_ms, self.latency_ms)


def _over(amount: Optional[float], latency_ms: Optional[float]) -> Optional[float]:
    is_timed = latency_ms and math.isfinite(latency_ms)
    return amount / latency_ms if amount and latency_ms and is_timed else None


class Rooflines:
    """Computes the rooflines of results, with caches for work and calibrations.

    Parameters
    ----------
    definitions : mapping of str to Definition
        The definitions of the dataset, as ``TraceSet.definitions``.
    root : str or Path, optional
        The folder of the dataset, from which recorded inputs such as page tables are read.
    """

    def __init__(
        self, definitions: Mapping[str, Definition], root: Union[str, Path, None] = None
    ) -> None:
        self._definitions, self._root = definitions, root
        self._known: dict[tuple[str, str], Optional[Work]] = {}
        self._ceilings: dict[str, Any] = {}

    def work_of(self, result: Result) -> Optional[Work]:
        """Return the work of a result's workload; None if it is not known."""
        key = result.definition, result.workload
        if key not in self._known:
            try:
                definition = self._definitions[result.definition]
                inputs = partial(recorded_integers, definition, result.task.text, self._root)
                self._known[key] = work_of(definition, result.axes, inputs)
            except (KeyError, DataError):  # no such definition, or it does not match
                self._known[key] = None
        return self._known[key]

    def of(self, result: Result) -> Optional[Roofline]:
        """Return the roofline of a result; None if its work is not known."""
        work = self.work_of(result)
        if work is None:
            return None
        if result.hardware not in self._ceilings:
            self._ceilings[result.hardware] = ceilings_of(result.hardware)
        ceilings = self._ceilings[result.hardware]
        limit, name = _limit(work, ceilings, result.clock.cache == "cold")
        return Roofline(work, result.latency_ms, limit, name)

    def mean_share(self, results: Iterable[Result]) -> Optional[float]:
        """Return the geometric mean of the shares of the limit of all results that passed.

        None if there are none, or if the share of one of them is not known.
        """
        found = [self.of(one) for one in results if one.passed]
        shares = [one.share for one in found if one is not None and one.share is not None]
        return geometric_mean(shares) if len(shares) == len(found) else None


def recorded_integers(
    definition: Definition, workload: str, root: Union[str, Path, None]
) -> dict[str, Any]:
    """Return the recorded integer inputs of a workload, such as page tables, as NumPy arrays.

    Inputs that cannot be read, or need NumPy where it is missing, are left out.

    Parameters
    ----------
    definition : Definition
        The definition of the workload.
    workload : str
        The workload as JSON.
    root : str or Path, optional
        Folder of the dataset; without it only scalars are returned.
    """
    found: dict[str, Any] = {}
    for name, told in json.loads(workload or "{}").get("inputs", {}).items():
        if name not in definition.inputs or not definition.inputs[name].dtype.is_integer:
            continue
        if told["type"] == "scalar":
            found[name] = told["value"]
        elif told["type"] == "safetensors" and root is not None:
            with suppress(ImportError, OSError, FibError):
                from safetensors import SafetensorError, safe_open

                path = resolve_blob(Path(root), told["path"])
                with suppress(SafetensorError), safe_open(path, framework="numpy") as file:
                    found[name] = file.get_tensor(told["tensor_key"])
    return found


def work_of(
    definition: Definition,
    axes: Mapping[str, int],
    inputs: Callable[[], Mapping[str, Any]] = dict,
) -> Work:
    """Return the minimum of bytes and operations of a call of a definition.

    Parameters
    ----------
    definition : Definition
        The definition.
    axes : mapping of str to int
        Value of each variable axis.
    inputs : callable, optional
        Returns recorded integers by name, if the op family asks for them.

    Raises
    ------
    DataError
        If a variable axis has no value.
    """
    floats = (s.dtype.value for s in definition.inputs.values() if len(s.shape or ()) > 1)
    dtypes = tuple(dict.fromkeys(one for one in floats if one not in _SELECTING))
    family = default_catalog().family_of(definition.op_type)
    if family is not None and family.spec.work is not None:
        with suppress(PluginLoadError):  # such as NumPy missing: fall back to the sizes
            told = family.load(family.spec.work)(definition, axes, inputs())
            if told is not None:
                return Work(int(told[0]), int(told[1]), TOLD, dtypes)
    nbytes, basis = _sizes(definition, axes)
    operations, factors = _product(definition, axes)
    return Work(nbytes, operations, basis, factors or dtypes)


def _product(definition: Definition, axes: Mapping[str, int]) -> tuple[int, tuple[str, ...]]:
    """Return operations and dtypes of a matrix product, as the judge counts them."""
    try:
        from fib_judge.floor import least_work
    except ImportError:
        return 0, ()
    least = least_work(definition, axes)
    return least.flops, least.dtypes


def _sizes(definition: Definition, axes: Mapping[str, int]) -> tuple[int, str]:
    """Return the bytes of all tensors, or of those that are read as a whole, and which it is."""
    inputs, outputs = definition.inputs.values(), definition.outputs.values()
    selects = any(spec.shape and spec.dtype.value in _SELECTING for spec in inputs)
    named = {axis for spec in outputs for axis in spec.shape or ()}
    total, basis = 0, SIZES
    shapes = (*definition.get_input_shapes(axes), *definition.get_output_shapes(axes))
    for spec, shape in zip((*inputs, *outputs), shapes, strict=True):
        if shape is None:
            continue
        if selects and not named.issuperset(spec.shape or ()):
            basis = SOME  # such as a KV cache, of which a call reads some pages
        else:
            total += spec.dtype.nbytes(math.prod(shape))
    return total, basis


def ceilings_of(hardware: str) -> Any:
    """Return the calibration that ``fib calibrate`` stored for a device of this machine, or None.

    Parameters
    ----------
    hardware : str
        Name of the device, as in the environment of a trace.
    """
    try:
        from fib_judge.calibration import load_ceilings
    except ImportError:
        return None
    return load_ceilings("cuda", hardware) or load_ceilings("cpu", hardware)


def _limit(work: Work, ceilings: Any, is_cold: bool) -> tuple[Optional[float], str]:
    if ceilings is None or not ceilings.settled or not ceilings.bytes_per_s:
        return None, ""
    # With cold caches everything comes from memory, however small it is.
    working_set = max(work.nbytes, _NOT_CACHED) if is_cold else work.nbytes
    rates = [ceilings.flops_per_s.get(one) or ceilings.peak(one) for one in work.dtypes]
    seconds = {
        "bytes": work.nbytes / ceilings.bandwidth(working_set),
        "operations": work.operations / max(rates, default=math.inf),
        "call": ceilings.call_ms / 1e3,
    }
    name = max(seconds, key=lambda one: seconds[one])
    return seconds[name] * 1e3 or None, name
