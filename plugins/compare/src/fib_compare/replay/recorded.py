"""What a trace says about its own making, or why that is not enough to do it again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Optional

from pydantic import PrivateAttr

from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.digests import definition_digest, seed_commitment
from flashinfer_bench.bench.origin import (
    SETTINGS_BY_KEY,
    SETTINGS_OF_DEFINITIONS,
    SETTINGS_OF_RUNS,
)
from flashinfer_bench.errors import ConfigError, RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flashinfer_bench.data import Definition, Provenance, Solution, Trace, TraceSet, Workload

_LARGEST_SEED = 2**63


class NotReproducible(RunnerError):
    """A trace cannot be replayed; the message says why."""


@dataclass(frozen=True)
class Recipe:
    """All that it takes to carry out an evaluation again.

    Attributes
    ----------
    definition, solution
        As they are in the dataset, which is as they were.
    provenance : Provenance
        What the trace tells.
    seed : int
        Of the inputs.
    trust : str
        As of `BenchmarkConfig`.
    timed_seed, reference_seed : int, optional
        Of the timed calls of the solution and of the reference.
    missing : tuple of str
        What is not known, and had to be taken as it is by default.
    """

    definition: Definition
    solution: Solution
    provenance: Provenance
    seed: int
    trust: Literal["full", "off"]
    timed_seed: Optional[int] = None
    reference_seed: Optional[int] = None
    missing: tuple[str, ...] = field(default=())


def recipe_of(trace: Trace, trace_set: TraceSet, siblings: Iterable[Trace]) -> Recipe:
    """Return how a trace came about.

    Parameters
    ----------
    trace : Trace
        Of a run.
    trace_set : TraceSet
        Its dataset.
    siblings : iterable of Trace
        Further traces, among which one may tell the seed that all solutions of a workload shared.

    Raises
    ------
    NotReproducible
        If the trace does not tell enough, or solution, definition or workload are not what they
        were.
    """
    evaluation = trace.evaluation
    provenance = evaluation.provenance if evaluation is not None else None
    if provenance is None or not _is_seed(provenance.seed):
        raise NotReproducible("the seed was not recorded")
    assert provenance.seed is not None
    definition = _definition(trace, provenance, trace_set)
    _require_workload(trace, trace_set)
    trust, timed = provenance.extra.get("trust", "full"), provenance.extra.get("rotation_seed")
    if trust not in ("full", "off"):
        raise NotReproducible(f"the recorded trust {trust!r} is none: full and off are")
    timed = timed if _is_seed(timed) else None
    reference = _reference_seed(provenance, siblings)
    return Recipe(
        definition,
        _solution(trace, provenance, trace_set),
        provenance,
        provenance.seed,
        trust,
        timed,
        reference,
        tuple(_missing(provenance, trust, timed, reference)),
    )


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_SEED


def _definition(trace: Trace, provenance: Provenance, trace_set: TraceSet) -> Definition:
    found = trace_set.definitions.get(trace.definition)
    if found is None:
        raise NotReproducible(f"definition {trace.definition!r} is not in the dataset")
    recorded = provenance.definition_hash
    if recorded is not None and recorded != definition_digest(found):
        raise NotReproducible(f"definition {trace.definition!r} has changed since")
    return found


def _require_workload(trace: Trace, trace_set: TraceSet) -> None:
    """Refuse a workload that is another than the dataset's of the same uuid."""
    uuid = trace.workload.uuid
    for one in trace_set.workloads.get(trace.definition, ()):
        if one.workload.uuid == uuid and _content(one) == _content(trace):
            return
    if any(one.workload.uuid == uuid for one in trace_set.workloads.get(trace.definition, ())):
        raise NotReproducible(f"workload {uuid!r} has changed since")


def _content(trace: Trace) -> str:
    """Return a workload as text: to Python a scalar of 1 equals one of 1.0 and one of true."""
    content = trace.workload.model_dump(mode="json")
    return json.dumps(content, sort_keys=True)


def _solution(trace: Trace, provenance: Provenance, trace_set: TraceSet) -> Solution:
    name = trace.solution or ""
    found = trace_set.get_solution(name)
    if found is None:
        raise NotReproducible(f"solution {name!r} is not in the dataset")
    if found.definition != trace.definition:
        reason = f"solution {name!r} is one of definition {found.definition!r} today"
        raise NotReproducible(reason)
    recorded = provenance.extra.get("solution_hash")
    if recorded is not None and recorded != found.hash():
        raise NotReproducible(f"solution {name!r} has changed since")
    return found


def _reference_seed(provenance: Provenance, siblings: Iterable[Trace]) -> Optional[int]:
    """Return the seed that the last solution of the workload has recorded for all of them."""
    wanted = provenance.extra.get("checks_id")
    if wanted is None:
        return None
    for told in chain([provenance], _provenances(siblings)):
        seed = told.extra.get("reference_seed")
        if isinstance(seed, int) and _is_seed(seed) and seed_commitment(seed) == wanted:
            return seed
    return None


def _provenances(traces: Iterable[Trace]) -> Iterator[Provenance]:
    for trace in traces:
        if trace.evaluation is not None and trace.evaluation.provenance is not None:
            yield trace.evaluation.provenance


def _missing(
    provenance: Provenance, trust: str, timed: Optional[int], reference: Optional[int]
) -> list[str]:
    missing = []
    if provenance.definition_hash is None:
        missing.append("not recorded: settings other than today's defaults, hash of the definition")
    if "solution_hash" not in provenance.extra:
        missing.append("not recorded: hash of the solution")
    if trust == "full" and timed is not None and reference is None:
        missing.append("not recorded: seed of the reference's timed calls; it was drawn anew")
    return missing


class RecordedConfig(BenchmarkConfig):
    """Settings under which each definition has those that a trace recorded."""

    _changed: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def restored(cls, changed: Mapping[str, Any], **fields: Any) -> RecordedConfig:
        """Return the settings of a trace.

        Parameters
        ----------
        changed : mapping
            As of `recorded_settings`.
        **fields
            Further fields of `BenchmarkConfig`; None leaves one at its default.

        Raises
        ------
        ConfigError
            If a value is not allowed.
        """
        for name in SETTINGS_BY_KEY:
            if not isinstance(changed.get(name, {}), dict):
                raise ConfigError(f"the recorded setting {name!r} is no mapping: {changed[name]!r}")
        config = cls.default(**{name: changed.get(name) for name in SETTINGS_OF_RUNS}, **fields)
        assert isinstance(config, RecordedConfig)
        config._changed = dict(changed)
        return config

    def resolve_eval_config(
        self, definition: Definition, workload: Optional[Workload] = None
    ) -> ResolvedEvalConfig:
        """Return the defaults for a definition with what was recorded put over them.

        Raises
        ------
        ConfigError
            If what was recorded is not allowed.
        """
        settings = super().resolve_eval_config(definition, workload).model_dump()
        changed = self._changed
        settings.update(
            (name, changed[name]) for name in SETTINGS_OF_DEFINITIONS if name in changed
        )
        for name in SETTINGS_BY_KEY:
            settings[name].update(changed.get(name, {}))
        return ResolvedEvalConfig(**settings)
