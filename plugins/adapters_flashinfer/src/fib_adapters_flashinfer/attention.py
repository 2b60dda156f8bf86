"""The template of the attention adapters: wrapper objects that are planned first and run later.

FlashInfer's attention comes as objects with two steps. ``plan`` gets where the keys are, ``run``
gets the tensors. What a run computes depends on the object alone: plans copy their arguments into
it, the older ``forward`` overwrites some of its attributes, and engines plan around ``plan``. So a
route reads the object when it is run, and remembers what stays the same until the next plan.

A class of wrappers needs a subclass of `AttentionRoute`, which says how its calls become inputs of
definitions, and one of `AttentionAdapter`, which says where the class is.
"""

from __future__ import annotations

import functools
import logging
import math
import weakref
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from fib_adapters_flashinfer.common import capturing, halves, with_lse
from fib_adapters_flashinfer.planned import Call, Planned, Shapes, Totals, last_of, ledger, starves
from fib_adapters_flashinfer.signatures import expects
from flashinfer_bench.integration import PatchSpec
from flashinfer_bench.integration.routing import (
    Route,
    RouteAdapter,
    Understood,
    UnroutableError,
    route_calls,
)
from flashinfer_bench.integration.slots import board

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

logger = logging.getLogger(__name__)

PLANS = ("plan", "begin_forward")
"""The methods that plan. The second is an older name of the first, the same function."""

RUNS = ("run", "run_return_lse")
"""The methods that compute. The second is the first, with one argument filled in."""

BACKENDS = frozenset({"auto", "fa2", "fa3"})
"""Backends whose kernels read the page table that a plan leaves on the object.

The others keep another one (block tables, sequence lengths), which a caller may have given beside
it; "auto" stands for the kernels without tensor cores.
"""

_ANYTHING = (Exception,)

# Attributes that ask for something other than plain attention unless they are None, and what calls
# are then counted under.
_FOREIGN = {
    "_jit_module": "custom kernel",
    "_custom_mask_buf": "custom mask",
    "_prefix_len_ptr": "multi-item scoring",
    "_token_pos_in_items_ptr": "multi-item scoring",
    "_max_item_len_ptr": "multi-item scoring",
    "_prims_backend": "backend",
}


class AttentionRoute(Route):
    """The ``run`` of one class of wrappers.

    Attributes
    ----------
    plan_parameters, run_parameters : str
        What is known of both methods, as `signatures.expects` takes it.
    queries, keys : tuple of (int, str), optional
        Which argument of a plan, by position and by name, has the offsets of queries; and of keys,
        or pages.
    places : tuple, optional
        Which ones have the places in use on last pages, and the page size.
    key_buffer, index_buffer, length_buffer : str
        Attributes that have, after a plan, the offsets of keys or pages, the page numbers, and the
        places in use on last pages; empty if the class has no pages.
    """

    kind = "method"
    queries: ClassVar[Optional[tuple[int, str]]] = None
    keys: ClassVar[tuple[int, str]]
    places: ClassVar[Optional[tuple[tuple[int, str], tuple[int, str]]]] = None
    key_buffer: ClassVar[str]
    index_buffer: ClassVar[str] = ""
    length_buffer: ClassVar[str] = ""

    plan_parameters: ClassVar[str]
    run_parameters: ClassVar[str]

    def expects(self, original: Callable[..., Any]) -> Optional[str]:
        """Return why this release of ``run`` is not supported; None if it is."""
        return self.supports("run", original)

    def supports(self, method: str, original: Callable[..., Any]) -> Optional[str]:
        """Return why this release of a method is not supported; None if it is."""
        known = self.plan_parameters if method in PLANS else self.run_parameters
        if method == "run_return_lse":
            known = known.replace("return_lse=False", "return_lse=True")
        return expects(known)(original)

    # ---------------------------------------------------------------------- hooks of classes

    def refusal(self, wrapper: Any, totals: Totals) -> Optional[str]:
        """Return why the runs of a planned object are none of a definition; None if they are."""
        return None

    def number_of_queries(self, wrapper: Any, totals: Totals) -> Optional[int]:
        """Return how many queries were planned; None if that is not known on the host."""
        # Newer releases keep it themselves, and so do plans that pass by ours.
        found: Optional[int] = getattr(wrapper, "_qo_indptr_last", totals.queries)
        return found

    @abstractmethod
    def names(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[str, ...]:
        """Return the names that a definition of such a call may have, the usual one first.

        Parameters
        ----------
        q, k, v : torch.Tensor
            As in `Understood.inputs`.

        Raises
        ------
        UnroutableError
            If the tensors do not go together.
        """

    # ------------------------------------------------------------------------------ planning

    def note(self, wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep what a plan was given; called when it has returned."""
        queries, keys = (last_of(each, args, kwargs) for each in (self.queries, self.keys))
        totals = ledger.totals[wrapper] = Totals(wrapper._plan_info, queries, keys)
        if self.queries is not None and starves(args, kwargs, self.queries, self.keys, self.places):
            ledger.totals[wrapper] = totals._replace(starved=True)

    def planned(self, wrapper: Any, q: torch.Tensor) -> Planned:
        """Return what is known of a planned object, learnt now if it was planned anew.

        Raises
        ------
        UnroutableError
            If it was not planned, or its runs cannot be routed.
        """
        planned = ledger.planned.get(wrapper)
        if (
            planned is None
            or planned.info is not wrapper._plan_info
            or planned.keys is not getattr(wrapper, self.key_buffer)
            or (self.index_buffer and planned.indices is not getattr(wrapper, self.index_buffer))
        ):
            try:
                planned = self._learn(wrapper, q)
            except AttributeError:  # what plan sets is not there
                raise UnroutableError("not planned") from None
            ledger.planned[wrapper] = planned
        if planned.refusal is not None:
            raise UnroutableError(planned.refusal)
        if q.dtype is not planned.dtype:
            raise UnroutableError("dtype")
        return planned

    def _learn(self, wrapper: Any, q: torch.Tensor) -> Planned:
        keys = getattr(wrapper, self.key_buffer)
        indices = getattr(wrapper, self.index_buffer) if self.index_buffer else None
        planned = Planned(wrapper._plan_info, keys, indices)
        totals = ledger.totals.get(wrapper)
        if totals is None or totals.info is not planned.info:
            totals = Totals(planned.info, None, None)
        planned.dtype, planned.total = wrapper._cached_q_data_type, totals.keys
        planned.queries = self.number_of_queries(wrapper, totals)
        planned.refusal = self._standing_refusal(wrapper, planned, totals, q)
        if planned.refusal is None and not capturing():
            self.measure(planned)
            if planned.queries is None:  # earlier releases do not keep it, nor look at it
                planned.queries = int(wrapper._qo_indptr_buf[-1].item())
        return planned

    def _standing_refusal(
        self, wrapper: Any, planned: Planned, totals: Totals, q: torch.Tensor
    ) -> Optional[str]:
        if planned.info is None:
            return "not planned"
        # Which backend "auto" stands for is said elsewhere if it is cuDNN.
        if wrapper._backend not in BACKENDS or getattr(wrapper, "_uses_cudnn", False):
            return "backend"
        for attribute, reason in _FOREIGN.items():
            if getattr(wrapper, attribute, None) is not None:
                return reason
        if planned.dtype not in halves() or wrapper._cached_kv_data_type is not planned.dtype:
            return "dtype"
        if getattr(wrapper, "_cached_o_data_type", None) not in (None, planned.dtype):
            return "dtype of the output"
        if planned.keys.device != q.device:
            return "plan on another device"
        if totals.starved:
            return "more queries than keys"
        return self.refusal(wrapper, totals)

    def measure(self, planned: Planned) -> None:
        """Find out how many pages are in use: asks the device if the plan did not say.

        Must not be called while a CUDA graph is captured.
        """
        total = planned.total
        if total is None:
            total = planned.total = int(planned.keys[-1].item())
        if planned.indices is None:
            return
        available = planned.indices.shape[0]
        if total > available:
            planned.refusal = "plan without its pages"
            return
        planned.valid = planned.indices if total == available else planned.indices[:total]
        planned.exact = total == available

    def pages(self, planned: Planned) -> Any:
        """Return the page numbers of a plan, if more were given than are in use.

        What is captured into a graph is replayed with other plans, for which only the whole buffer
        is long enough.
        """
        if capturing():
            return planned.indices
        if planned.valid is None:
            self.measure(planned)
            if planned.refusal is not None:
                raise UnroutableError(planned.refusal)
        return planned.valid

    # ------------------------------------------------------------------------------- running

    def shapes(
        self, wrapper: Any, planned: Planned, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> Shapes:
        """Return what follows from the shapes of a call; kept for the next one."""
        shapes, calls = planned.shapes, board.calls
        if (
            shapes.calls() is calls
            and shapes.q == q.shape
            and shapes.k == k.shape
            and shapes.v == v.shape
        ):
            return shapes
        names = self.names(q, k, v)
        if planned.queries is not None and q.shape[0] != planned.queries:
            raise UnroutableError("number of queries")
        lengths = getattr(wrapper, self.length_buffer) if self.length_buffer else None
        found = planned.shapes = Shapes(
            q=tuple(q.shape),
            k=tuple(k.shape),
            v=tuple(v.shape),
            calls=weakref.ref(calls),
            name=next((each for each in names if each in calls), names[0]),
            sm_scale=1.0 / math.sqrt(q.shape[-1]),
            out=(*q.shape[:-1], v.shape[-1]),
            # With one place on a page all last pages are full.
            last_page_len=None if lengths is None or k.shape[1] == 1 else lengths,
        )
        return found

    def deliver(self, understood: Understood, result: Any) -> Any:
        """Return the output, or both outputs, in the caller's buffers if there are any."""
        call: Call = understood.rest
        pair = result if isinstance(result, (tuple, list)) else (result,)
        if len(pair) < 2 and (call.return_lse or call.lse is not None):
            raise UnroutableError("no lse among the outputs")
        return with_lse(pair, call.out, call.lse, call.return_lse)


# ----------------------------------------------------------------------------------- adapter


class AttentionAdapter(RouteAdapter):
    """Wraps the plans and the runs of one class of wrappers.

    Attributes
    ----------
    owner : str
        Path of the class.
    route : type of AttentionRoute
        Describes its ``run``.
    """

    owner: ClassVar[str]
    route: ClassVar[type[AttentionRoute]]

    def targets(self) -> Sequence[PatchSpec]:
        """Return both plans and both runs."""
        route = self.route()
        return [
            PatchSpec(
                f"{self.owner}.{name}",
                "method",
                name,
                ctx_key=self.owner,
                expects=functools.partial(route.supports, name),
                definitions=route.definitions,
            )
            for name in (*PLANS, *RUNS)
        ]

    def make_wrapper(self, spec: PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """Return what notes a plan, or routes a run."""
        if spec.name in PLANS:
            return note_plans(self.route(), orig)
        routed = route_calls(self.route(), orig)
        return with_sums(routed, orig) if spec.name == "run_return_lse" else routed


def note_plans(route: AttentionRoute, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``plan`` that tells `route` of plans that were made."""

    @functools.wraps(original)
    def plan(self: Any, *args: Any, **kwargs: Any) -> Any:
        ledger.forget(self)
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            ledger.refuse(self, route.key_buffer, route.index_buffer)
            raise
        try:
            route.note(self, args, kwargs)
        except _ANYTHING:  # the plan itself is made; its totals are then asked for
            logger.debug("%s: a plan was not understood", route.label, exc_info=True)
        return result

    return plan


def with_sums(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run_return_lse`` in terms of ``run``, which it calls with one argument filled in."""

    @functools.wraps(original)
    def run_return_lse(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **{"return_lse": True, **kwargs})

    return run_return_lse
