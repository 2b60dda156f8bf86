"""Finding workloads of the same content."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from flashinfer_bench.data.workload import SafetensorsInput

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flashinfer_bench.data.workload import InputSpec
    from flashinfer_bench.tracing.sanitize.raw_tensors import RawTensors
    from flashinfer_bench.tracing.sanitize.survey import Record


def find_duplicates(
    records: Sequence[Record], tensors: RawTensors, traces: Counter[tuple[str, str]]
) -> Iterator[tuple[Record, Record]]:
    """Yield each workload that is to go, and the equal one that stays.

    The first one stays; if there are some that traces refer to, the first of those.

    Parameters
    ----------
    records : sequence of Record
        Workloads.
    tensors : RawTensors
        Reads stored tensors. Only those of workloads that are equal otherwise are read.
    traces : counter
        How many traces refer to each workload, by definition and uuid.
    """
    for group in _groups(records, lambda _: "tensor"):
        for equal in _groups(group, lambda spec: _content(spec, tensors)):
            stays = next((one for one in equal if traces[one.identity]), equal[0])
            yield from ((one, stays) for one in equal if one is not stays)


def _groups(
    records: Iterable[Record], tell: Callable[[SafetensorsInput], Any]
) -> Iterator[list[Record]]:
    """Yield the groups of more than one."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[_key(record, tell)].append(record)
    return (group for group in found.values() if len(group) > 1)


def _key(record: Record, tell: Callable[[SafetensorsInput], Any]) -> str:
    workload = record.workload
    tolerance = workload.tolerance and workload.tolerance.model_dump(mode="json")
    inputs = {name: _told(spec, tell) for name, spec in workload.inputs.items()}
    return json.dumps([record.trace.definition, workload.axes, inputs, tolerance], sort_keys=True)


def _told(spec: InputSpec, tell: Callable[[SafetensorsInput], Any]) -> Any:
    return tell(spec) if isinstance(spec, SafetensorsInput) else spec.model_dump(mode="json")


def _content(spec: SafetensorsInput, tensors: RawTensors) -> Any:
    """Return the digest of a tensor; its place if it cannot be read: the same place is equal."""
    return tensors.digest(spec) or [spec.path, spec.tensor_key]
