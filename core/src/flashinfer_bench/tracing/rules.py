"""The older interface: rules, which choose among entries that are in memory, and the tracer.

A rule's policy gets a list of entries and returns those to keep. Here it is asked again and again,
each time with those that it kept before and the new ones, so that memory stays bounded. For
policies that compare entries with each other, as all presets do, that comes to the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.loader import Problems, load_definitions
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.tracing.config import TracingConfig, TracingConfigRegistry
from flashinfer_bench.tracing.policies import FilterPolicy
from flashinfer_bench.tracing.runtime import TracingRuntime

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.data import Definition
    from flashinfer_bench.tracing.entry import WorkloadEntry
    from flashinfer_bench.tracing.layout import Layout

logger = logging.getLogger(__name__)

MOST_UNFOLDED = 256
"""How many new entries a rule's policy is given at once."""


@dataclass(eq=False)
class TraceEntry:
    """A call, as rules see it.

    Parameters
    ----------
    def_name : str
        The definition.
    axes : dict of str to int
        Value of each variable axis.
    definition_input_names : set of str
        Names of all inputs of the definition.
    picked : dict of str to tensor
        Copies of the inputs that the rule dumps.
    order : int
        Number of the call.
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


DedupPolicy = Callable[[list[TraceEntry]], list[TraceEntry]]


@dataclass
class TracingRule:
    """What is recorded of the calls of a definition.

    Parameters
    ----------
    tensors_to_dump : list of str or callable
        Names of inputs that are written as they were; or a function of the inputs by name that
        returns names.
    dedup_policy : callable
        Gets entries and returns those to keep.
    dedup_keys : callable, optional
        Returns a key for an entry: the policy gets the entries of each key apart.
    """

    tensors_to_dump: Union[list[str], Callable[[Mapping[str, Any]], Any]]
    dedup_policy: DedupPolicy
    dedup_keys: Optional[Callable[[TraceEntry], Hashable]] = None


class RulePolicy(FilterPolicy):
    """Does what a rule says.

    Parameters
    ----------
    rule : TracingRule
        The rule.
    """

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
        picked = entry.tensors()
        seen = TraceEntry(
            entry.def_name, entry.axes, set(self._names), picked, entry.order, None, entry
        )
        keys = self._rule.dedup_keys
        self._kept.setdefault(None if keys is None else keys(seen), []).append(seen)
        self._new += 1
        if self._new >= MOST_UNFOLDED:
            self._fold()

    def _fold(self) -> None:
        self._new = 0
        self._kept = {key: list(self._rule.dedup_policy(e)) for key, e in self._kept.items()}

    def drain(self) -> list[WorkloadEntry]:
        """See `FilterPolicy.drain`.

        A policy of this form remembers nothing: what it keeps afterwards may be like what was
        drained.
        """
        self._fold()
        kept, self._kept = self._kept, {}
        return [each.entry for entries in kept.values() for each in entries if each.entry]

    def reset(self) -> None:
        """See `FilterPolicy.reset`."""
        self._kept, self._new = {}, 0


def config_of(rule: TracingRule) -> TracingConfig:
    """Return a rule in the form of today.

    One of our own presets becomes the policy that does the same without copying duplicates.
    """
    if not isinstance(rule, TracingRule):
        raise ConfigError(f"rules: give TracingRule objects, not {type(rule).__name__}")
    if not callable(rule.dedup_policy):
        raise ConfigError("a TracingRule has no dedup_policy that can be called")
    online = getattr(rule.dedup_policy, "online", None)
    if online is not None and rule.dedup_keys is None:
        return TracingConfig(rule.tensors_to_dump, filter_policy=online)
    return TracingConfig(rule.tensors_to_dump, filter_policy=lambda: RulePolicy(rule))


class Tracer(TracingRuntime):
    """The older name of `TracingRuntime`, and its older parameters.

    Parameters
    ----------
    rules : mapping of str to TracingRule, optional
        By definition, or by pattern. Default: `fib_full_tracing`.
    out_dir : str or Path, optional
        Folder of a dataset to write to, or its ``traces/workloads`` or ``workloads``; it is made if
        need be. Default: the dataset of ``FIB_DATASET_PATH``, which has the definitions too.
    blob_dir : str or Path, optional
        ``blob/workloads`` in the same dataset; tensors go nowhere else.

    Raises
    ------
    ConfigError
        If the rules are something else.
    """

    def __init__(
        self,
        rules: Optional[Mapping[str, TracingRule]] = None,
        out_dir: Union[str, Path, None] = None,
        blob_dir: Union[str, Path, None] = None,
    ) -> None:
        if rules is None:
            from flashinfer_bench.tracing.rule_presets import fib_full_tracing

            rules = fib_full_tracing
        self.rules = dict(rules)
        own = {name: config_of(each) for name, each in self.rules.items()}
        super().__init__(_target(out_dir, blob_dir), TracingConfigRegistry(None, own))


def _target(
    out_dir: Union[str, Path, None], blob_dir: Union[str, Path, None]
) -> Union[TraceSet, None]:
    """Return the dataset to write to, None for that of the environment."""
    if out_dir is None and blob_dir is None:
        return None
    roots = [_root_of(Path(each)) for each in (out_dir, blob_dir) if each is not None]
    root = roots[0].absolute()
    if len({each.absolute() for each in roots}) > 1:
        logger.warning("blob_dir=%s is not in the dataset %s: tensors go there", blob_dir, root)
    root.mkdir(parents=True, exist_ok=True)
    definitions: dict[str, Definition] = {}
    for each in (env.dataset_path(), root):
        if each.is_dir():
            definitions.update(load_definitions(each, Problems("collect")))
    return TraceSet(root=root, definitions=definitions)


def _root_of(folder: Path) -> Path:
    """Return the dataset that a folder of workloads or blobs is in."""
    if folder.name == "workloads" and folder.parent.name in ("traces", "blob"):
        return folder.parent.parent
    return folder.parent if folder.name in ("workloads", "traces", "blob") else folder
