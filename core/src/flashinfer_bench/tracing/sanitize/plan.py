"""Deciding what is to be taken out of a dataset."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.repair.blobs import is_young
from flashinfer_bench.tracing.sanitize.duplicates import find_duplicates
from flashinfer_bench.tracing.sanitize.findings import Finding, Reason
from flashinfer_bench.tracing.sanitize.raw_tensors import RawTensors
from flashinfer_bench.tracing.sanitize.rules import Subject, judge
from flashinfer_bench.tracing.sanitize.survey import named_blobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.tracing.sanitize.findings import Limits
    from flashinfer_bench.tracing.sanitize.survey import Record, Survey


class Verdict(NamedTuple):
    """A line, and why it is to go.

    Parameters
    ----------
    record : Record
        The line.
    finding : Finding
        Why.
    """

    record: Record
    finding: Finding


class Plan(NamedTuple):
    """What is to be taken out.

    Parameters
    ----------
    drop : tuple of Verdict
        Workloads, and traces of theirs.
    keep : tuple of Verdict
        Workloads that would go, if no traces referred to them.
    """

    drop: tuple[Verdict, ...]
    keep: tuple[Verdict, ...]


def make_plan(
    root: Path,
    definitions: Mapping[str, Definition],
    survey: Survey,
    limits: Limits,
    *,
    with_traces: bool,
) -> Plan:
    """Judge all workloads.

    Parameters
    ----------
    root : Path
        The dataset.
    definitions : mapping of str to Definition
        By name. Workloads of others are only looked at for duplicates.
    survey : Survey
        What is in the dataset.
    limits : Limits
        How large a workload may be.
    with_traces : bool
        Whether workloads that traces refer to go, too, and those traces with them.
    """
    found = _judge_all(root, definitions, survey, limits)
    drop = tuple(one for one in found if with_traces or not one.finding.traces)
    keep = tuple(one for one in found if not with_traces and one.finding.traces)
    if with_traces:
        drop += tuple(_traces_of(drop, survey))
    return Plan(drop, keep)


def _judge_all(
    root: Path, definitions: Mapping[str, Definition], survey: Survey, limits: Limits
) -> list[Verdict]:
    tensors = RawTensors(root)
    traces = survey.traces_by_workload()
    found: list[Verdict] = []
    sound: list[Record] = []
    for record in survey.workloads:
        finding = _judge(record, definitions, tensors, limits)
        if finding is None:
            sound.append(record)
        else:
            finding = dataclasses.replace(finding, traces=traces[record.identity])
            found.append(Verdict(record, finding))
    for record, stays in find_duplicates(sound, tensors, traces):
        found.append(Verdict(record, _duplicate(record, stays, traces)))
    return sorted(found, key=lambda one: (one.record.path, one.record.place))


def _judge(
    record: Record, definitions: Mapping[str, Definition], tensors: RawTensors, limits: Limits
) -> Optional[Finding]:
    definition = definitions.get(record.trace.definition)
    if definition is None:
        return None
    found = judge(Subject.read(definition, record.workload, tensors), limits)
    return None if found is None else _finding(found[0], record, found[1])


def _duplicate(record: Record, stays: Record, traces: Mapping[tuple[str, str], int]) -> Finding:
    place = str(stays.path) if stays.line is None else f"{stays.path}:{stays.line}"
    finding = _finding(Reason.DUPLICATE, record, f"equals {stays.workload.uuid} at {place}")
    # Of the same uuid: its traces refer to the one that stays just as well.
    same = record.identity == stays.identity
    return dataclasses.replace(finding, traces=0 if same else traces[record.identity])


def _finding(reason: Reason, record: Record, message: str) -> Finding:
    definition, uuid = record.identity
    return Finding(reason, record.path, message, record.line, definition, uuid)


def _traces_of(drop: Sequence[Verdict], survey: Survey) -> Iterator[Verdict]:
    gone = {one.record.identity: one.finding for one in drop if one.finding.traces}
    for record in survey.traces:
        cause = gone.get(record.identity)
        if cause is not None:
            message = f"of workload {cause.uuid}, which is taken out ({cause.kind.value})"
            yield Verdict(record, _finding(Reason.TRACE, record, message))


def unused_blobs(root: Path, survey: Survey, dropped: Sequence[Verdict]) -> list[Finding]:
    """Return the tensor files that nothing names once some lines are gone.

    A file of the last hour, other than those of the lines that go, may belong to a workload that a
    tracer is just about to add, and is left alone. If a line cannot be read, it might name any
    file, so that there are none.

    Parameters
    ----------
    root : Path
        The dataset.
    survey : Survey
        What is in it.
    dropped : sequence of Verdict
        What is taken out of it.
    """
    if survey.unread:
        return []
    gone = {(one.record.path, one.record.place) for one in dropped}
    records = [*survey.workloads, *survey.traces]
    stay = named_blobs(root, (one for one in records if (one.path, one.place) not in gone))
    went = named_blobs(root, (one.record for one in dropped))
    message = "no workload and no trace names this file"
    return [
        Finding(Reason.UNUSED_BLOB, path.relative_to(root), message)
        for path in layout.files(root / layout.BLOB, ".safetensors")
        if (real := path.resolve()) not in stay and (real in went or not is_young(path))
    ]
