"""The older interface of tracing: rules that select entries, presets, and the tracer.

A rule's policy takes a list of entries and returns those to keep. Here it is called repeatedly,
each time with the entries kept so far and the new ones, so that memory stays bounded. For policies
that compare entries with each other the result is the same. The policies defined here adapt the
current policies to this form: if a rule uses one of them, calls go to it directly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from fib_ops_llm.tracing_policies import KeepFirstByAvgSeqLen, KeepRandomK
from flashinfer_bench import env
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.data.loader import Problems, load_definitions
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.tracing import (
    FilterPolicy,
    TracingConfig,
    TracingConfigRegistry,
    TracingRuntime,
    WorkloadEntry,
    policies,
)
from flashinfer_bench.tracing import disable_tracing as disable_tracing
from flashinfer_bench.tracing import enable_tracing as enable_tracing

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.tracing.recorder import Layout

    Folder = Union[str, Path, None]

_logger = logging.getLogger(__name__)

_MOST_UNFOLDED = 256
"""Number of new entries passed to a rule's policy at once."""


@dataclass(eq=False)
class TraceEntry:
    """A call in the form used by rules.

    Parameters
    ----------
    def_name : str
        Name of the definition.
    axes : dict of str to int
        Value of each variable axis.
    definition_input_names : set of str
        Names of all inputs of the definition.
    picked : dict of str to tensor
        Copies of the inputs that the rule selects.
    order : int
        Index of the call.
    cuda_graph_snapshot : dict of str to tensor, optional
        See `WorkloadEntry`.
    """

    def_name: str
    axes: dict[str, int]
    definition_input_names: set[str]
    picked: dict[str, torch.Tensor]
    order: int
    cuda_graph_snapshot: Optional[dict[str, torch.Tensor]] = None
    entry: Optional[WorkloadEntry] = field(default=None, repr=False)

    def values(self) -> dict[str, torch.Tensor]:
        """Return the inputs to write, as `WorkloadEntry.values` does."""
        return self.picked


DedupPolicy = Callable[[list[TraceEntry]], list[TraceEntry]]
Picker = Callable[[Mapping[str, Any]], list[str]]


@dataclass
class TracingRule:
    """Settings for recording the calls of a definition.

    Parameters
    ----------
    tensors_to_dump : list of str or callable
        Names of inputs that are stored with their values; or a function of the inputs by name that
        returns names.
    dedup_policy : callable
        Takes entries and returns those to keep.
    dedup_keys : callable, optional
        Returns a key for an entry; the policy is applied to the entries of each key separately.
    """

    tensors_to_dump: Union[list[str], Callable[[Mapping[str, Any]], Any]]
    dedup_policy: DedupPolicy
    dedup_keys: Optional[Callable[[TraceEntry], Hashable]] = None


class RulePolicy(FilterPolicy):
    """Applies a rule. It does not remember entries that were drained."""

    def __init__(self, rule: TracingRule) -> None:
        self._rule = rule
        self._names: set[str] = set()
        self._kept: dict[Hashable, list[TraceEntry]] = {}
        self._new = 0

    def begin(self, layout: Layout) -> None:
        """See `FilterPolicy.begin`."""
        self._names = set(layout.names)

    def submit(self, entry: WorkloadEntry) -> None:
        """See `FilterPolicy.submit`."""
        seen = TraceEntry(
            entry.def_name, entry.axes, {*self._names}, entry.tensors(), entry.order, None, entry
        )
        keys = self._rule.dedup_keys
        self._kept.setdefault(None if keys is None else keys(seen), []).append(seen)
        self._new += 1
        if self._new >= _MOST_UNFOLDED:
            self._fold()

    def _fold(self) -> None:
        self._new = 0
        self._kept = {key: list(self._rule.dedup_policy(e)) for key, e in self._kept.items()}

    def drain(self) -> list[WorkloadEntry]:
        """See `FilterPolicy.drain`."""
        self._fold()
        kept, self._kept = self._kept, {}
        return [each.entry for entries in kept.values() for each in entries if each.entry]


def _config_of(rule: TracingRule) -> TracingConfig:
    """Convert a rule to the current settings."""
    if not isinstance(rule, TracingRule):
        raise ConfigError(f"rules: give TracingRule objects, not {type(rule).__name__}")
    if not callable(rule.dedup_policy):
        raise ConfigError("a TracingRule has no dedup_policy that can be called")
    online = getattr(rule.dedup_policy, "online", None)
    if online is not None and rule.dedup_keys is None:
        return TracingConfig(rule.tensors_to_dump, filter_policy=online)
    return TracingConfig(rule.tensors_to_dump, filter_policy=lambda: RulePolicy(rule))


class Tracer(TracingRuntime):
    """The older name and parameters of `TracingRuntime`.

    Parameters
    ----------
    rules : mapping of str to TracingRule, optional
        By definition, or by name pattern. Default: `fib_full_tracing`.
    out_dir : str or Path, optional
        Folder of a dataset to write to, or its ``traces/workloads`` or ``workloads``; created if
        necessary. Default: the dataset of ``FIB_DATASET_PATH``, which also has the definitions.
    blob_dir : str or Path, optional
        ``blob/workloads`` in the same dataset; tensors cannot be written elsewhere.

    Raises
    ------
    ConfigError
        If the rules have the wrong type.
    """

    def __init__(
        self,
        rules: Optional[Mapping[str, TracingRule]] = None,
        out_dir: Folder = None,
        blob_dir: Folder = None,
    ) -> None:
        self.rules = dict(fib_full_tracing if rules is None else rules)
        own = {name: _config_of(each) for name, each in self.rules.items()}
        super().__init__(_target(out_dir, blob_dir), TracingConfigRegistry(None, own))

    def collect(  # type: ignore[override]  # `runtime_args` by position, too
        self,
        def_name: str,
        runtime_args: Any = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        args: Any = None,
    ) -> None:
        """See `TracingRuntime.collect`."""
        super().collect(def_name, runtime_args if args is None else args, kwargs)


def get_tracer() -> Optional[TracingRuntime]:
    """Return the active runtime, or None."""
    return TracingRuntime.get_instance()


def make_tracing_hook(tracer: TracingRuntime) -> Callable[[str, Mapping[str, Any]], None]:
    """Return a function of definition name and inputs that makes `tracer` record the call.

    A started tracer records calls without it.
    """

    def hook(def_name: str, runtime_kwargs: Mapping[str, Any]) -> None:
        tracer.collect(def_name, runtime_kwargs)

    return hook


def _target(out_dir: Folder, blob_dir: Folder) -> Optional[TraceSet]:
    """Return the dataset to write to; None for that of the environment variable."""
    roots = [_root_of(Path(each)) for each in (out_dir, blob_dir) if each is not None]
    if not roots:
        return None
    root = roots[0]
    if root != roots[-1]:
        _logger.warning("blob_dir=%s is not in the dataset %s: tensors go there", blob_dir, root)
    root.mkdir(parents=True, exist_ok=True)
    definitions: dict[str, Definition] = {}
    for each in (env.dataset_path(), root):
        if each.is_dir():
            definitions.update(load_definitions(each, Problems("collect")))
    return TraceSet(root=root, definitions=definitions)


def _root_of(folder: Path) -> Path:
    """Return the dataset that contains a folder of workloads or blobs."""
    folder = folder.absolute()
    if folder.name == "workloads" and folder.parent.name in ("traces", "blob"):
        return folder.parent.parent
    return folder.parent if folder.name in ("workloads", "traces", "blob") else folder


# ------------------------------------------------------------------------------------- presets


def _policy(online: Callable[[], policies.OnlinePolicy]) -> DedupPolicy:
    """Return a current policy as a function of all entries."""

    def policy(entries: list[TraceEntry]) -> list[TraceEntry]:
        made: Any = online()
        for entry in sorted(entries, key=lambda entry: entry.order):
            made.submit(entry)
        kept: list[TraceEntry] = made.drain()
        return kept

    online()  # raises now if parameters are invalid
    policy.online = online  # type: ignore[attr-defined]
    return policy


def policy_keep_all() -> DedupPolicy:
    """Keep all entries."""
    return _policy(policies.KeepAllPolicy)


def policy_keep_first_k(k: int) -> DedupPolicy:
    """Keep the first `k` entries."""
    return _policy(lambda: policies.KeepFirstKPolicy(k))


def policy_keep_random_k(k: int, seed: Optional[int] = None) -> DedupPolicy:
    """Keep `k` entries at random."""
    return _policy(lambda: KeepRandomK(k, seed))


def policy_dedup_by_axes(k: int = 1) -> DedupPolicy:
    """Keep the first `k` entries for each combination of axes."""
    return _policy(lambda: policies.KeepFirstKByAxesPolicy(k))


def policy_dedup_by_avg_seq_len(k: int = 1) -> DedupPolicy:
    """Keep the first `k` entries for each rounded average sequence length."""
    return _policy(lambda: KeepFirstByAvgSeqLen(k))


def KEY_AXES(entry: TraceEntry) -> Hashable:  # the name that programs import
    """Return a key that is equal for entries with the same axes."""
    return tuple(sorted(entry.axes.items()))


def dump_all() -> Picker:
    """Dump all tensors."""
    return lambda inputs: [name for name, value in inputs.items() if hasattr(value, "dtype")]


def dump_int32() -> Picker:
    """Dump only int32 tensors: mostly index pointers."""
    return lambda inputs: [
        name for name, each in inputs.items() if str(getattr(each, "dtype", "")) == "torch.int32"
    ]


KEEP_ALL = policy_keep_all()
KEEP_RANDOM_ONE = policy_keep_random_k(1)
DEDUP_BY_AXES = policy_dedup_by_axes()
DEDUP_BY_AVG_SEQ_LEN = policy_dedup_by_avg_seq_len()

DUMP_ALL = dump_all()
DUMP_NONE: list[str] = []
DUMP_INT32 = dump_int32()

gemm_rule = axes_only_rule = TracingRule(DUMP_NONE, DEDUP_BY_AXES)
all_dump_rule = TracingRule(DUMP_ALL, KEEP_ALL)
gqa_paged_decode_rule = gqa_paged_prefill_rule = gqa_ragged_prefill_rule = TracingRule(
    DUMP_INT32, DEDUP_BY_AVG_SEQ_LEN
)
mla_paged_decode_rule = mla_paged_prefill_rule = mla_ragged_prefill_rule = gqa_paged_decode_rule

fib_attn_tracing = {
    f"{attention}_{kind}*": gqa_paged_decode_rule
    for attention in ("gqa", "mla")
    for kind in ("paged_decode", "paged_prefill", "ragged_prefill")
}
"""Rules for attention, by name pattern."""

fib_full_tracing = {**fib_attn_tracing, "gemm_*": gemm_rule, "*": axes_only_rule}
"""Rules for all definitions, by name pattern."""
