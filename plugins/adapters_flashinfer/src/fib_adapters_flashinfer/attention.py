"""The template of the attention adapters: wrapper objects that are planned first and run later.

FlashInfer's attention comes as objects with two steps. ``plan`` gets where the keys are, ``run``
gets the tensors. What a run computes depends on the object alone: plans copy their arguments into
it, the older ``forward`` overwrites some of its attributes, and engines plan around ``plan``. So a
route reads the object when it is run, and remembers what stays the same until the next plan.

A class of wrappers needs a subclass of `AttentionRoute`, which says where the class is and how its
calls become inputs of definitions.
"""

from __future__ import annotations

import functools
import logging
import math
import weakref
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Optional, TypeVar

from fib_adapters_flashinfer.common import capturing, nobody, unit_scale, with_lse
from fib_adapters_flashinfer.signatures import expects
from flashinfer_bench.routing import (
    PatchSpec,
    Route,
    RouteAdapter,
    Understood,
    UnroutableError,
    route_calls,
    router,
)

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

FAILED = "its last plan failed"
"""Reason: a plan that raised may have changed a part of the object, and left the rest."""

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

# Options of a run, and what calls are counted under that give them. Any other option is new.
_OPTIONS = {
    "sinks": "attention sinks",
    "kv_cache_sf": "scales of a quantised kv cache",
    "skip_softmax_threshold_scale_factor": "skipping of softmax",
    "use_fp16_softmax": "half-precision softmax",
    "uses_spcompress": "compressed keys",
}
_SCALES = ("q_scale", "k_scale", "v_scale", "o_scale")

Where = tuple[int, str]
"""An argument of a plan, by position and by name."""

P = TypeVar("P")


# --------------------------------------------------------------------------- what was planned


class Plans(Generic[P]):
    """What is known of each planned object, for as long as it lives."""

    def __init__(self) -> None:
        # By identity: to look an object up by a weak reference costs a hash of it each time.
        self._known: dict[int, tuple[weakref.ref[Any], P]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, wrapper: Any) -> Optional[P]:
        """Return what is known of an object."""
        found = self._known.get(id(wrapper))
        return found[1] if found is not None and found[0]() is wrapper else None

    def keep(self, wrapper: Any, plan: P) -> P:
        """Keep what is known of an object."""
        key, known = id(wrapper), self._known
        known[key] = (weakref.ref(wrapper, lambda _gone: known.pop(key, None)), plan)
        return plan

    def forget(self, wrapper: Any) -> None:
        """Forget an object: it is planned anew."""
        self._known.pop(id(wrapper), None)


def note_plans(
    original: Callable[..., Any],
    plans: Plans[Any],
    note: Callable[[Any, tuple[Any, ...], dict[str, Any]], object],
    refuse: Callable[[Any], object],
) -> Callable[..., Any]:
    """Return a ``plan`` that is taken note of.

    Parameters
    ----------
    original : callable
        The plan.
    plans : Plans
        What is known of objects; nothing of one whose plan cannot be read.
    note : callable
        Gets the object and the arguments of a plan that was made.
    refuse : callable
        Gets the object if its plan raised.
    """

    @functools.wraps(original)
    def plan(self: Any, *args: Any, **kwargs: Any) -> Any:
        plans.forget(self)
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            refuse(self)
            raise
        try:
            note(self, args, kwargs)
        except _ANYTHING:  # the plan itself is made; the run finds out, and counts the reason
            plans.forget(self)
            logger.debug("a plan of %s was not understood", type(self).__name__, exc_info=True)
        return result

    return plan


class Call(NamedTuple):
    """What a route keeps of a call, to hand the outputs over.

    Attributes
    ----------
    wrapper : Any
        The object that was run.
    out, lse : torch.Tensor, optional
        The caller's buffers.
    return_lse : bool
        Whether the logarithms of the sums are returned as well.
    enable_pdl : bool, optional
        A hint for the launch.
    """

    wrapper: Any
    out: Optional[torch.Tensor]
    lse: Optional[torch.Tensor]
    return_lse: bool
    enable_pdl: Optional[bool]

    @classmethod
    def of(cls, fields: tuple[Any, ...]) -> Call:
        """Return a call with these: in half the time that its constructor takes."""
        return tuple.__new__(cls, fields)


class Shapes(NamedTuple):
    """What follows from the shapes of a call's tensors.

    Attributes
    ----------
    q, k, v : tuple of int
        The shapes.
    calls : callable
        Weak reference to ``router.calls`` when the name was chosen.
    name : str
        The definition.
    sm_scale : float
        What scores are multiplied by where the plan does not say: 1 / sqrt(head_dim).
    out : tuple of int
        Shape of the output.
    last_page_len : torch.Tensor, optional
        Places in use on the last page of each request; None where pages have one place.
    """

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    calls: Callable[[], Any]
    name: str
    sm_scale: float
    out: tuple[int, ...]
    last_page_len: Optional[torch.Tensor]


_NO_SHAPES = Shapes((), (), (), nobody, "", 0.0, (), None)


class Planned:
    """What stays the same between two plans of one object.

    Attributes
    ----------
    info, keys, indices : Any
        What the object had when this was learnt: ``_plan_info``, offsets, page numbers. A plan
        replaces the first always, and the others unless they are the caller's buffers.
    starved : bool
        Whether a request is known to have some keys, but fewer than queries: its first queries see
        none, of which kernels make a number, and references of definitions none.
    learnt : bool
        Whether the object has been read; until then only what the plan's arguments say is known.
    refusal : str, optional
        Why its runs cannot be routed.
    queries : int, optional
        How many queries there are; None where that is not known on the host.
    dtype : torch.dtype
        Of queries, keys, values and outputs.
    total : int, optional
        How many keys, or pages, there are; None as long as nobody could ask the device.
    valid : torch.Tensor, optional
        The page numbers in use: a view, since buffers may be longer.
    exact : bool
        Whether all page numbers are in use.
    shapes : Shapes
        Of the latest call.
    """

    __slots__ = (
        *("dtype", "exact", "indices", "info", "keys", "learnt", "queries", "refusal", "shapes"),
        *("starved", "total", "valid"),
    )

    def __init__(self, info: Any, keys: Any, indices: Any) -> None:
        self.info, self.keys, self.indices = info, keys, indices
        self.starved = self.learnt = self.exact = False
        self.refusal: Optional[str] = None
        self.queries: Optional[int] = None
        self.total: Optional[int] = None
        self.dtype: Any = None
        self.valid: Any = None
        self.shapes = _NO_SHAPES


planned: Plans[Planned] = Plans()
"""What is known of wrappers for grouped-query attention."""


def given(where: Where, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an argument of a plan; None if it is not given."""
    position, name = where
    return args[position] if position < len(args) else kwargs.get(name)


def on_host(*values: Any) -> bool:
    """Return whether all values are tensors that can be read without waiting for a device."""
    import torch

    return all(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in values)


# -------------------------------------------------------------------------------------- routes


class AttentionRoute(Route):
    """The ``run`` of one class of wrappers.

    Attributes
    ----------
    owner : str
        Path of the class.
    plan_parameters, run_parameters : str
        What is known of both methods, as `signatures.expects` takes it.
    queries, keys : tuple of (int, str), optional
        Which argument of a plan has the offsets of queries; and of keys, or pages.
    places : tuple, optional
        Which ones have the places in use on last pages, and the page size.
    key_buffer, index_buffer, length_buffer : str
        Attributes that have, after a plan, the offsets of keys or pages, the page numbers, and the
        places in use on last pages; empty if the class has no pages.
    """

    kind = "method"
    owner: ClassVar[str]
    plan_parameters: ClassVar[str]
    run_parameters: ClassVar[str]
    queries: ClassVar[Optional[Where]] = None
    keys: ClassVar[Where]
    places: ClassVar[Optional[tuple[Where, Where]]] = None
    key_buffer: ClassVar[str]
    index_buffer: ClassVar[str] = ""
    length_buffer: ClassVar[str] = ""

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

    def refusal(self, wrapper: Any) -> Optional[str]:
        """Return why the runs of a planned object are none of a definition; None if they are."""
        return None

    def number_of_queries(self, wrapper: Any, plan: Planned) -> Optional[int]:
        """Return how many queries were planned; None if that is not known on the host."""
        # Newer releases keep it themselves, and so do plans that pass by ours.
        found: Optional[int] = getattr(wrapper, "_qo_indptr_last", plan.queries)
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
        plan = planned.keep(wrapper, self._fresh(wrapper))
        keys = given(self.keys, args, kwargs)
        if on_host(keys) and keys.numel():
            plan.total = int(keys[-1])
        if self.queries is None:
            return
        queries = given(self.queries, args, kwargs)
        if on_host(queries) and queries.numel():
            plan.queries = int(queries[-1])
        last, size = (given(each, args, kwargs) for each in self.places or (self.keys,) * 2)
        if on_host(queries, keys, last):
            asked, lengths = queries.diff(), keys.diff()
            some = lengths > 0
            if self.places:
                lengths = (lengths - 1) * size + last
            plan.starved = bool((some & (asked > lengths)).any())

    def refuse(self, wrapper: Any) -> None:
        """Have runs of an object refused until it is planned anew, by whatever function."""
        plan = planned.keep(wrapper, self._fresh(wrapper))
        plan.learnt, plan.refusal = True, FAILED

    def _fresh(self, wrapper: Any) -> Planned:
        names = ("_plan_info", self.key_buffer, self.index_buffer)
        return Planned(*(getattr(wrapper, name, None) if name else None for name in names))

    def planned(self, wrapper: Any, q: torch.Tensor) -> Planned:
        """Return what is known of a planned object, learnt now if it was planned anew.

        Raises
        ------
        UnroutableError
            If it was not planned, or its runs cannot be routed.
        """
        try:
            plan = planned.get(wrapper)
            if (
                plan is None
                or plan.info is not wrapper._plan_info
                or plan.keys is not getattr(wrapper, self.key_buffer)
                or (self.index_buffer and plan.indices is not getattr(wrapper, self.index_buffer))
            ):
                plan = planned.keep(wrapper, self._fresh(wrapper))
            if not plan.learnt:
                self._learn(wrapper, plan, q)
        except AttributeError:  # what plan sets is not there
            raise UnroutableError("not planned") from None
        if plan.refusal is not None:
            raise UnroutableError(plan.refusal)
        if q.dtype is not plan.dtype:
            raise UnroutableError("dtype")
        return plan

    def _learn(self, wrapper: Any, plan: Planned, q: torch.Tensor) -> None:
        plan.dtype = wrapper._cached_q_data_type
        plan.queries = self.number_of_queries(wrapper, plan)
        plan.refusal = self._standing_refusal(wrapper, plan, q)
        if plan.refusal is None and not capturing():
            self.measure(plan)
            if plan.queries is None:  # earlier releases do not keep it, nor look at it
                plan.queries = int(wrapper._qo_indptr_buf[-1].item())
        plan.learnt = True

    def _standing_refusal(self, wrapper: Any, plan: Planned, q: torch.Tensor) -> Optional[str]:
        import torch

        if plan.info is None:
            return "not planned"
        # Which backend "auto" stands for is said elsewhere if it is cuDNN.
        if wrapper._backend not in BACKENDS or getattr(wrapper, "_uses_cudnn", False):
            return "backend"
        for attribute, reason in _FOREIGN.items():
            if getattr(wrapper, attribute, None) is not None:
                return reason
        halves = (torch.float16, torch.bfloat16)
        if plan.dtype not in halves or wrapper._cached_kv_data_type is not plan.dtype:
            return "dtype"
        if getattr(wrapper, "_cached_o_data_type", None) not in (None, plan.dtype):
            return "dtype of the output"
        if plan.keys.device != q.device:
            return "plan on another device"
        if plan.starved:
            return "more queries than keys"
        return self.refusal(wrapper)

    def measure(self, plan: Planned) -> None:
        """Find out how many pages are in use: asks the device if the plan did not say.

        Must not be called while a CUDA graph is captured.
        """
        total = plan.total
        if total is None:
            total = plan.total = int(plan.keys[-1].item())
        if plan.indices is None:
            return
        available = plan.indices.shape[0]
        if total > available:
            plan.refusal = "plan without its pages"
            return
        plan.valid = plan.indices if total == available else plan.indices[:total]
        plan.exact = total == available

    def pages(self, plan: Planned) -> Any:
        """Return the page numbers of a plan, if more were given than are in use.

        What is captured into a graph is replayed with other plans, for which only the whole buffer
        is long enough.
        """
        if capturing():
            return plan.indices
        if plan.valid is None:
            self.measure(plan)
            if plan.refusal is not None:
                raise UnroutableError(plan.refusal)
        return plan.valid

    # ------------------------------------------------------------------------------- running

    def shapes(
        self, wrapper: Any, plan: Planned, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> Shapes:
        """Return what follows from the shapes of a call; kept for the next one."""
        shapes, calls = plan.shapes, router.calls
        if (
            shapes.calls() is calls
            and shapes.q == q.shape
            and shapes.k == k.shape
            and shapes.v == v.shape
        ):
            return shapes
        names = self.names(q, k, v)
        if plan.queries is not None and q.shape[0] != plan.queries:
            raise UnroutableError("number of queries")
        lengths = getattr(wrapper, self.length_buffer) if self.length_buffer else None
        found = plan.shapes = Shapes(
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
        return with_lse(result, call.out, call.lse, call.return_lse)


# ------------------------------------------------------------------------------------ refusals
#
# Why runs are of no definition: options, buffers, and what plans left. Each check raises
# `UnroutableError` with a reason of its own.


def refuse_options(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse a run for what it was given beside its tensors, if that is anything.

    Parameters
    ----------
    args : tuple
        Arguments for kernels of the caller's own.
    options : dict
        By name; those that are None are not given.
    """
    if args:
        raise UnroutableError("arguments for a custom kernel")
    for name, value in options.items():
        if name in _SCALES:
            # Engines give these as numbers with each call.
            if not (value == 1.0 if type(value) is float else unit_scale(value)):
                raise UnroutableError(f"{name[0]} scale")
        elif not (value is None or value is False):
            raise UnroutableError(_OPTIONS.get(name, "an option that is not known"))


def refuse_standing(wrapper: Any, window_left: Optional[int] = None) -> None:
    """Refuse a run for what ``forward`` can change without a plan.

    Parameters
    ----------
    wrapper : Any
        The object that is run.
    window_left : int, optional
        What the run was given; None and -1 stand for no window.
    """
    if wrapper._window_left != -1 or not (window_left is None or window_left == -1):
        raise UnroutableError("sliding window")
    soft_cap = wrapper._logits_soft_cap
    if soft_cap is not None and soft_cap > 0:
        raise UnroutableError("logits soft cap")
    if wrapper._pos_encoding_mode != "NONE":
        raise UnroutableError("position encoding")


def refuse_prefill(wrapper: Any, lse_base: str, lse_layout: str) -> None:
    """Refuse a prefill that is not causal, or wants lse in another form than definitions have."""
    if not wrapper._causal:
        raise UnroutableError("not causal")
    if lse_base != "log2" or lse_layout != "NH":
        raise UnroutableError("form of lse")


def refuse_buffers(
    out: Optional[torch.Tensor],
    lse: Optional[torch.Tensor],
    shape: tuple[int, ...],
    q: torch.Tensor,
) -> None:
    """Refuse a run whose buffers are none for its outputs: the original says what is wrong."""
    import torch

    if out is not None and (
        out.shape != shape or out.dtype is not q.dtype or out.device != q.device
    ):
        raise UnroutableError("out buffer")
    if lse is not None and (
        lse.shape != shape[:2] or lse.dtype is not torch.float32 or lse.device != q.device
    ):
        raise UnroutableError("lse buffer")


def scale_of(wrapper: Any, shapes: Shapes) -> float:
    """Return what scores are multiplied by.

    Raises
    ------
    UnroutableError
        If that is no number: to read a tensor could mean to wait for the device.
    """
    scale = wrapper._sm_scale
    if scale is None:
        return shapes.sm_scale
    if type(scale) is float:
        return scale
    if not isinstance(scale, (int, float)):
        raise UnroutableError("sm_scale is no number")
    return float(scale)


# ----------------------------------------------------------------------------------- adapter


class AttentionAdapter(RouteAdapter):
    """Wraps the plans and the runs of one class of wrappers.

    Attributes
    ----------
    route : AttentionRoute
        Describes its ``run``.
    """

    route: ClassVar[AttentionRoute]

    def targets(self) -> Sequence[PatchSpec]:
        """Return both plans and both runs."""
        route = self.route
        return [
            PatchSpec(
                f"{route.owner}.{name}",
                "method",
                name,
                ctx_key=route.owner,
                expects=functools.partial(route.supports, name),
                definitions=route.definitions,
            )
            for name in (*PLANS, *RUNS)
        ]

    def make_wrapper(self, spec: PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """Return what notes a plan, or routes a run."""
        if spec.name in PLANS:
            return note_plans(orig, planned, self.route.note, self.route.refuse)
        routed = route_calls(self.route, orig)
        if spec.name == "run":
            return routed

        @functools.wraps(orig)
        def run_return_lse(self: Any, *args: Any, **kwargs: Any) -> Any:
            return routed(self, *args, **{"return_lse": True, **kwargs})

        return run_return_lse
