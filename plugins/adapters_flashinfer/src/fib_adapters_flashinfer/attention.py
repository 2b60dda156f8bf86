"""Grouped-query attention: batch decode, and batch prefill on paged or ragged keys and values.

FlashInfer's attention uses objects with two steps: ``plan`` receives the locations of the keys,
``run`` the tensors. The computation of a run depends only on the object: plans copy their arguments
into it, the older ``forward`` overwrites some of its attributes, and engines replace ``plan``. A
route therefore reads the object at each run, and caches what stays the same until the next plan.

`AttentionRoute` is the template for a class of such wrappers: a subclass gives the path of the
class, and maps its calls to inputs of definitions.
"""

from __future__ import annotations

import functools
import logging
import math
import weakref
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, TypeVar

from fib_adapters_flashinfer.common import mismatch, nobody, parse, unit_scale, with_lse
from fib_adapters_flashinfer.helpers import PerObject
from fib_adapters_flashinfer.live import TemplatedRoute
from flashinfer_bench import routing
from flashinfer_bench.routing import Understood, UnroutableError, is_capturing, router

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

logger = logging.getLogger(__name__)

PLANS = ("plan", "begin_forward")
"""The planning methods. The second is an older name of the first, the same function."""

RUNS = ("run", "run_return_lse")
"""The computing methods. The second is the first with one argument preset."""

BACKENDS = frozenset({"auto", "fa2", "fa3"})
"""Backends whose kernels read the page table that a plan stores in the object.

Other backends keep their own tables (block tables, sequence lengths), which a caller may have
passed in addition; "auto" selects the kernels without tensor cores.
"""

FAILED = "its last plan failed"
"""Reason: a plan that raised may have changed only a part of the object."""

_ANYTHING = (Exception,)

# Attributes that must be None for plain attention, and the reason under which other calls are
# counted.
_FOREIGN = {
    "_jit_module": "custom kernel",
    "_custom_mask_buf": "custom mask",
    "_prefix_len_ptr": "multi-item scoring",
    "_token_pos_in_items_ptr": "multi-item scoring",
    "_max_item_len_ptr": "multi-item scoring",
    "_prims_backend": "backend",
}

# Options of a run, and the reason under which calls with them are counted. Other options are new.
_OPTIONS = {
    "sinks": "attention sinks",
    "kv_cache_sf": "scales of a quantised kv cache",
    "skip_softmax_threshold_scale_factor": "skipping of softmax",
    "use_fp16_softmax": "half-precision softmax",
    "uses_spcompress": "compressed keys",
}
_SCALES = ("q_scale", "k_scale", "v_scale", "o_scale")

T = TypeVar("T")


# --------------------------------------------------------------------------------------- planning


class PlannedRoute(TemplatedRoute):
    """Route for the ``run`` of one class of wrappers, whose plans are recorded.

    `Understood.rest` is the object that was run, the caller's buffers for the output and for the
    log-sum-exp values, whether these are returned as well, and a hint for kernel launches.

    Attributes
    ----------
    owner : str
        Path of the class.
    methods : tuple of str
        Its patched methods.
    plan_signatures, run_signatures : tuple of str
        Supported parameters of both; see `common.mismatch`.
    plans : PerObject
        Data about planned objects of this process.
    """

    kind = "method"
    owner: ClassVar[str]
    methods: ClassVar[tuple[str, ...]] = (*PLANS, *RUNS)
    plan_signatures: ClassVar[tuple[str, ...]]
    run_signatures: ClassVar[tuple[str, ...]]
    plans: ClassVar[PerObject[Any]]

    def supports(self, method: str, original: Callable[..., Any]) -> Optional[str]:
        """Return why this release of a method is not supported; None if it is."""
        known = self.plan_signatures if method in PLANS else self.run_signatures
        if method == "run_return_lse":
            known = tuple(each.replace("return_lse=False", "return_lse=True") for each in known)
        return mismatch(original, *known)

    @abstractmethod
    def note(self, wrapper: Any, arguments: dict[str, Any]) -> None:
        """Record a plan of an object; called after it has returned."""

    @abstractmethod
    def refuse(self, wrapper: Any) -> None:
        """Refuse runs of an object whose plan raised, until it is planned again."""

    def deliver(self, understood: Understood, result: Any) -> Any:
        """Return the output, or both outputs, in the caller's buffers if there are any."""
        _wrapper, out, lse, return_lse, _enable_pdl = understood.rest
        return with_lse(result, out, lse, return_lse)


class AttentionAdapter(routing.Adapter):
    """Wraps the plan and run methods of one class of wrappers.

    Attributes
    ----------
    route : PlannedRoute
        Describes its ``run``.
    """

    route: ClassVar[PlannedRoute]

    def targets(self) -> Sequence[routing.PatchSpec]:
        """Return the plans and runs."""
        route = self.route
        return [
            routing.PatchSpec(
                f"{route.owner}.{name}",
                "method",
                name,
                expects=functools.partial(route.supports, name),
                definitions=route.definitions,
            )
            for name in route.methods
        ]

    def make_wrapper(self, spec: routing.PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records a plan, or routes a run."""
        if spec.name in PLANS:
            return _note_plans(orig, self.route)
        routed = routing.route_calls(self.route, orig)
        if spec.name == "run":
            return routed

        @functools.wraps(orig)
        def run_return_lse(self: Any, *args: Any, **kwargs: Any) -> Any:
            return routed(self, *args, **{"return_lse": True, **kwargs})

        return run_return_lse


def _note_plans(original: Callable[..., Any], route: PlannedRoute) -> Callable[..., Any]:
    """Return a ``plan`` wrapper that records each plan."""
    plans, names = route.plans, [*parse(route.plan_signatures[0]).parameters][1:]

    @functools.wraps(original)
    def plan(self: Any, *args: Any, **kwargs: Any) -> Any:
        plans.discard(self)
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            route.refuse(self)
            raise
        try:
            route.note(self, {**dict(zip(names, args, strict=False)), **kwargs})
        except _ANYTHING:  # the plan itself succeeded; the run will fail and count the reason
            plans.discard(self)
            logger.debug("could not interpret a plan of %s", type(self).__name__, exc_info=True)
        return result

    return plan


class Shapes(NamedTuple):
    """Values derived from the shapes of a call's tensors.

    Attributes
    ----------
    q, k, v : tuple of int
        The shapes.
    calls : callable
        Weak reference to ``router.calls`` at the time the name was chosen.
    name : str
        Name of the definition.
    sm_scale : float
        Scale of the scores if the plan does not specify one: 1 / sqrt(head_dim).
    out : tuple of int
        Shape of the output.
    last_page_len : torch.Tensor, optional
        Number of used slots on the last page of each request; None if pages have one slot.
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


@dataclass(slots=True, eq=False)
class Planned:
    """State that stays the same between two plans of one object.

    Attributes
    ----------
    info, keys, indices : Any
        The object's ``_plan_info``, offsets and page numbers when this state was read. A plan
        always replaces the first, and the others unless they are the caller's buffers.
    starved : bool
        Whether a request is known to have some keys, but fewer than queries: its first queries see
        no keys, for which kernels return a number, but the references of definitions do not.
    learnt : bool
        Whether the object has been read; before that, only the plan's arguments are known.
    refusal : str, optional
        The reason why its runs cannot be routed.
    queries : int, optional
        Number of queries; None if not known on the host.
    dtype : torch.dtype
        Dtype of queries, keys, values and outputs.
    total : int, optional
        Number of keys, or pages; None until the device can be queried.
    valid : torch.Tensor, optional
        The page numbers in use: a view of `indices` if these are longer.
    shapes : Shapes
        Shapes of the latest call.
    """

    info: Any
    keys: Any
    indices: Any
    starved: bool = False
    learnt: bool = False
    refusal: Optional[str] = None
    queries: Optional[int] = None
    dtype: Any = None
    total: Optional[int] = None
    valid: Any = None
    shapes: Shapes = _NO_SHAPES


planned: PerObject[Planned] = PerObject()
"""Plans of wrappers for grouped-query attention."""


def on_host(*values: Any) -> bool:
    """Return whether all values are tensors that can be read without waiting for a device."""
    import torch

    return all(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in values)


# -------------------------------------------------------------------------------------- routes


class AttentionRoute(PlannedRoute):
    """Route for the ``run`` of one class of wrappers for grouped-query attention.

    Attributes
    ----------
    queries, keys : str
        The plan arguments with the offsets of queries, and of keys or pages. Plans for decode have
        no queries.
    last_page_len : str
        The plan argument with the used slots on last pages; empty if they are not needed.
    key_buffer, index_buffer, length_buffer : str
        Attributes that contain, after a plan, the offsets of keys or pages, the page numbers, and
        the used slots on last pages; empty if the class has no pages.
    """

    plans = planned
    queries: ClassVar[str] = ""
    keys: ClassVar[str]
    last_page_len: ClassVar[str] = ""
    key_buffer: ClassVar[str]
    index_buffer: ClassVar[str] = ""
    length_buffer: ClassVar[str] = ""

    # ----------------------------------------------------------------------- hooks for subclasses

    def refusal(self, wrapper: Any) -> Optional[str]:
        """Return why runs of a planned object match no definition; None if they do."""
        return None

    def number_of_queries(self, wrapper: Any, plan: Planned) -> Optional[int]:
        """Return the number of planned queries; None if not known on the host."""
        # Newer releases store it, and so do plans that bypass our wrapper.
        found: Optional[int] = getattr(wrapper, "_qo_indptr_last", plan.queries)
        return found

    @abstractmethod
    def names(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[str, ...]:
        """Return the possible names of a definition for such a call, the usual one first.

        Parameters
        ----------
        q, k, v : torch.Tensor
            As in `Understood.inputs`.

        Raises
        ------
        UnroutableError
            If the tensors do not match each other.
        """

    # ------------------------------------------------------------------------------ planning

    def note(self, wrapper: Any, arguments: dict[str, Any]) -> None:
        """Record the arguments of a plan."""
        plan = planned.keep(wrapper, self._fresh(wrapper))
        keys = arguments[self.keys]
        queries: Any = arguments.get(self.queries)
        last: Any = arguments.get(self.last_page_len, keys)
        if on_host(keys) and keys.numel():
            plan.total = int(keys[-1])
        if on_host(queries) and queries.numel():
            plan.queries = int(queries[-1])
        if on_host(queries, keys, last):
            asked, lengths = queries.diff(), keys.diff()
            some = lengths > 0
            if self.last_page_len:
                lengths = (lengths - 1) * arguments["page_size"] + last
            plan.starved = bool((some & (asked > lengths)).any())

    def refuse(self, wrapper: Any) -> None:
        """Refuse runs of an object until it is planned again, by any function."""
        plan = planned.keep(wrapper, self._fresh(wrapper))
        plan.learnt, plan.refusal = True, FAILED

    def _fresh(self, wrapper: Any) -> Planned:
        names = ("_plan_info", self.key_buffer, self.index_buffer)
        info, keys, indices = (getattr(wrapper, name, None) if name else None for name in names)
        return Planned(info, keys, indices)

    def planned(self, wrapper: Any, q: torch.Tensor) -> Planned:
        """Return the state of a planned object, reading it if there is a new plan.

        Raises
        ------
        UnroutableError
            If it has no plan, or its runs cannot be routed.
        """
        try:
            plan = planned.find(wrapper)
            if (
                plan is None
                or plan.info is not wrapper._plan_info
                or plan.keys is not getattr(wrapper, self.key_buffer)
                or (self.index_buffer and plan.indices is not getattr(wrapper, self.index_buffer))
            ):
                plan = planned.keep(wrapper, self._fresh(wrapper))
            if not plan.learnt:
                self._learn(wrapper, plan, q)
        except AttributeError:  # attributes set by plan are missing
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
        if plan.refusal is None and not is_capturing():
            self.measure(plan)
            if plan.queries is None:  # earlier releases do not store or use it
                plan.queries = int(wrapper._qo_indptr_buf[-1].item())
        plan.learnt = True

    def _standing_refusal(self, wrapper: Any, plan: Planned, q: torch.Tensor) -> Optional[str]:
        import torch

        if plan.info is None:
            return "not planned"
        # If "auto" selects cuDNN, that is recorded elsewhere.
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
        """Determine how many pages are in use; queries the device if the plan did not specify it.

        Must not be called while a CUDA graph is captured.
        """
        if plan.total is None:
            plan.total = int(plan.keys[-1].item())
        if plan.indices is None:
            return
        available = plan.indices.shape[0]
        if plan.total > available:
            plan.refusal = "plan without its pages"
        else:
            plan.valid = plan.indices if plan.total == available else plan.indices[: plan.total]

    def pages(self, plan: Planned) -> Any:
        """Return the page numbers of a plan that are in use.

        A captured graph is replayed with other plans, for which only the whole buffer is long
        enough.
        """
        if is_capturing():
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
        """Return the values derived from the shapes of a call; cached for the next call."""
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
            # With one slot per page all last pages are full.
            last_page_len=None if lengths is None or k.shape[1] == 1 else lengths,
        )
        return found

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Return output and lse of the original, run on `inputs` with the current plan.

        The page table comes from the plan: the original reads no other.
        """
        wrapper, _out, _lse, _return_lse, enable_pdl = understood.rest
        q, *keys = inputs[:3]
        if wrapper._kv_layout == "HND":
            heads = 1 if self.index_buffer else 0
            keys = [each.transpose(heads, heads + 1) for each in keys]
        tensors = (tuple(keys),) if self.index_buffer else keys
        return original(wrapper, q, *tensors, return_lse=True, enable_pdl=enable_pdl)


# ------------------------------------------------------------------------------------ refusals
#
# Reasons why runs match no definition: options, buffers, and the state of plans. Each check raises
# `UnroutableError` with its own reason.


def refuse_options(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse a run that has options besides its tensors.

    Parameters
    ----------
    args : tuple
        Arguments for custom kernels of the caller.
    options : dict
        By name; options that are None are treated as not given.
    """
    if args:
        raise UnroutableError("arguments for a custom kernel")
    for name, value in options.items():
        if name in _SCALES:
            # Engines pass these as numbers with each call.
            if not (value == 1.0 if type(value) is float else unit_scale(value)):
                raise UnroutableError(f"{name[0]} scale")
        elif not (value is None or value is False):
            raise UnroutableError(_OPTIONS.get(name, "an option that is not known"))


def refuse_standing(wrapper: Any, window_left: Optional[int] = None) -> None:
    """Refuse a run because of attributes that ``forward`` can change without a plan.

    Parameters
    ----------
    wrapper : Any
        The object that is run.
    window_left : int, optional
        The argument of the run; None and -1 mean no window.
    """
    if wrapper._window_left != -1 or not (window_left is None or window_left == -1):
        raise UnroutableError("sliding window")
    soft_cap = wrapper._logits_soft_cap
    if soft_cap is not None and soft_cap > 0:
        raise UnroutableError("logits soft cap")
    if wrapper._pos_encoding_mode != "NONE":
        raise UnroutableError("position encoding")


def refuse_prefill(wrapper: Any, lse_base: str, lse_layout: str) -> None:
    """Refuse a prefill that is not causal, or requests lse in an unsupported form."""
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
    """Refuse a run whose buffers do not match its outputs; the original reports the error."""
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
    """Return the scale of the scores.

    Raises
    ------
    UnroutableError
        If it is not a number: reading a tensor could wait for the device.
    """
    scale = wrapper._sm_scale
    if scale is None:
        return shapes.sm_scale
    if not isinstance(scale, (int, float)):
        raise UnroutableError("sm_scale is not a number")
    return float(scale)


# -------------------------------------------------------------------------------------- views
#
# Views of caches that are made of the same tensor in each call are kept as long as the tensor.
# Making the views of a cache takes longer than the rest of an adapter's work on a call. A cache is
# long-lived, and many callers pass the same object each time.
#
# An object is recognised by a weak reference. Its views stay valid until its memory or shape
# changes, which only methods on the object itself can do (``set_``, ``resize_``, ``transpose_``,
# assignments to ``data``): therefore its address, sizes, strides and element type are compared as
# well. Different memory cannot have the same address, because the views keep the old memory alive.
# They are made of a detached alias: otherwise they would refer to the tensor as their base and keep
# it, and its memory, alive.

_MOST = 1024


class Views(PerObject[Optional[tuple[Any, ...]]]):
    """A cache of views of tensors; None for a tensor that was seen once."""

    def __len__(self) -> int:
        return sum(views is not None for _, views in list(self._known.values()))

    def of(self, tensor: torch.Tensor, make: Callable[[torch.Tensor], T]) -> T:
        """Return ``make(tensor)``, or the views of an earlier call if they are still valid.

        Parameters
        ----------
        tensor : torch.Tensor
            Any tensor; views of tensor subclasses, and of tensors that require gradients, are not
            cached.
        make : callable
            Creates views without computing anything; must be the same function each time, because
            views made by another function are not reused. Only one function's views are kept per
            tensor.
        """
        known = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor:
            # Without a callback: many callers make a new object for each call.
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[id(tensor)] = (weakref.ref(tensor), None)
            return make(tensor)
        if known[1] is not None:
            was, address, dtype, shape, strides, views = known[1]
            if (
                was is make
                and tensor.data_ptr() == address
                and tensor.dtype is dtype
                and tensor.shape == shape
                and tensor.stride() == strides
                and not tensor.requires_grad
            ):
                found: T = views
                return found
        return self._made(tensor, make)

    def _made(self, tensor: torch.Tensor, make: Callable[[torch.Tensor], T]) -> T:
        """Make the views of a tensor, and keep them if they cannot outlive their validity."""
        import torch

        plain = type(tensor) is torch.Tensor and not tensor.requires_grad
        try:
            address = tensor.data_ptr() if plain else 0
        except RuntimeError:  # it has no memory: a placeholder in a transform
            address = 0
        if not address:
            return make(tensor)
        views = make(tensor.detach())
        about = (address, tensor.dtype, tensor.shape, tensor.stride())
        self.keep(tensor, (make, *about, views))
        return views


views = Views()
"""The views used by all adapters."""


FORM = "form of the kv cache"


# --------------------------------------------------------------------------------------- pages


def as_pages(cache: Any, layout: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of a paged cache, in the form of definitions.

    Parameters
    ----------
    cache : tuple of two tensors, or tensor
        Keys and values, or one tensor with both in its second dimension. If pages have one slot,
        the slot dimension may be omitted.
    layout : str
        ``_kv_layout`` of the object: slots before heads (NHD) or after (HND).
    dtype : torch.dtype
        Required element type.

    Returns
    -------
    k, v : torch.Tensor
        ``[num_pages, page_size, num_kv_heads, head_dim]``: the tensors themselves, or views.

    Raises
    ------
    UnroutableError
        If the cache has none of these forms.
    """
    if not isinstance(cache, tuple):
        try:
            k, v = views.of(cache, _HALVES_OF[layout])
        except KeyError:
            raise UnroutableError("kv layout") from None
        except TypeError:  # an object without weak references
            raise UnroutableError(FORM) from None
        if k.dtype is not dtype:
            raise UnroutableError("dtype")
        return k, v
    if len(cache) != 2:
        raise UnroutableError(FORM)
    k, v = cache
    if k.dtype is not dtype or v.dtype is not dtype:
        raise UnroutableError("dtype")
    if layout == "NHD" and k.dim() == 4 and v.dim() == 4:
        return k, v
    return _rearranged(k, layout), _rearranged(v, layout)


def _halves_of_nhd(cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both halves of a cache in one tensor, as pages."""
    import torch

    if not isinstance(cache, torch.Tensor) or cache.dim() not in (4, 5) or cache.shape[1] != 2:
        raise UnroutableError(FORM)
    k, v = cache.unbind(1)
    return (k, v) if k.dim() == 4 else (k.unsqueeze(1), v.unsqueeze(1))


def _halves_of_hnd(cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Likewise, for a cache with heads before slots."""
    import torch

    # One view for both halves instead of one for each.
    turned = isinstance(cache, torch.Tensor) and cache.dim() == 5
    return _halves_of_nhd(cache.transpose(2, 3) if turned else cache)


_HALVES_OF = {"NHD": _halves_of_nhd, "HND": _halves_of_hnd}


def _rearranged(pages: torch.Tensor, layout: str) -> torch.Tensor:
    if pages.dim() == 3:  # one slot per page: its position does not matter
        return views.of(pages, _one_place)
    if pages.dim() != 4:
        raise UnroutableError(FORM)
    if layout == "HND":
        return views.of(pages, _places_first)
    if layout != "NHD":
        raise UnroutableError("kv layout")
    return pages


def _one_place(pages: torch.Tensor) -> torch.Tensor:
    return pages.unsqueeze(1)


def _places_first(pages: torch.Tensor) -> torch.Tensor:
    return pages.transpose(1, 2)


class PagedRoute(AttentionRoute):
    """Route for the ``run`` of a class of wrappers for paged keys and values.

    Attributes
    ----------
    prefixes : tuple of str
        Prefixes of definition names, the usual one first.
    causal : bool
        Whether requests have several queries, of which the last sees all keys.
    """

    key_buffer = "_paged_kv_indptr_buf"
    index_buffer = "_paged_kv_indices_buf"
    length_buffer = "_paged_kv_last_page_len_buf"
    prefixes: ClassVar[tuple[str, ...]]
    causal: ClassVar[bool] = False

    def names(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[str, ...]:
        """Return the names for these heads, head sizes and page sizes."""
        if q.dim() != 3 or v.shape != k.shape or q.shape[-1] != k.shape[-1]:
            raise UnroutableError("shapes")
        sizes = f"h{q.shape[1]}_kv{k.shape[2]}_d{q.shape[2]}_ps{k.shape[1]}"
        return tuple(f"{prefix}_{sizes}" for prefix in self.prefixes)

    def understand(
        self,
        wrapper: Any,
        q: torch.Tensor,
        paged_kv_cache: Any,
        *args: Any,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        out: Optional[torch.Tensor] = None,
        lse: Optional[torch.Tensor] = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: Optional[bool] = None,
        window_left: Optional[int] = None,
        q_len_per_req: Optional[int] = None,
        **options: Any,
    ) -> Understood:
        """Read the object; see `Route.understand`."""
        if args or options:
            refuse_options(args, options)
        if not (q_scale is k_scale is v_scale is None):
            refuse_options((), {"k_scale": k_scale, "v_scale": v_scale, "q_scale": q_scale})
        if q_len_per_req is not None and q_len_per_req != 1:
            raise UnroutableError("several queries")
        plan = self.planned(wrapper, q)
        refuse_standing(wrapper, window_left)
        if self.causal:
            refuse_prefill(wrapper, lse_base, lse_layout)
        k, v = as_pages(paged_kv_cache, wrapper._kv_layout, plan.dtype)
        shapes = self.shapes(wrapper, plan, q, k, v)
        if out is not None or lse is not None:
            refuse_buffers(out, lse, shapes.out, q)
        pages = plan.indices if plan.valid is plan.indices else self.pages(plan)
        scale, last = scale_of(wrapper, shapes), shapes.last_page_len
        return Understood(
            shapes.name,
            (q, k, v, wrapper._qo_indptr_buf, plan.keys, pages, scale, last)
            if self.causal
            else (q, k, v, plan.keys, pages, scale, last),
            (wrapper, out, lse, return_lse, enable_pdl),
        )


class DecodeRoute(PagedRoute):
    """``BatchDecodeWithPagedKVCacheWrapper.run`` as ``gqa_paged_decode_h*_kv*_d*_ps*``."""

    owner = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper"
    label = f"{owner}.run"
    parameters = routing.signature_of(
        "q", "k_cache", "v_cache", "kv_indptr", "kv_indices", "sm_scale", kv_last_page_len=None
    )
    plan_signatures = (
        "self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size",
    )
    run_signatures = (
        "self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, "
        "lse=None, return_lse=False, enable_pdl=None, window_left=None, sinks=None",
    )
    definitions = ("gqa_paged_decode_h*",)
    prefixes = ("gqa_paged_decode",)
    keys = "indptr"

    def refusal(self, wrapper: Any) -> Optional[str]:
        """Return why a plan matches no definition: each request must have one query."""
        if getattr(wrapper, "_window_right", 0) != 0:
            return "sliding window"
        return None if getattr(wrapper, "_q_len_per_req", 1) in (1, None) else "several queries"

    def number_of_queries(self, wrapper: Any, plan: Planned) -> Optional[int]:
        """Return the number of requests, each of which has one query."""
        found: int = wrapper._paged_kv_last_page_len_buf.shape[0]
        return found


class PrefillRoute(PagedRoute):
    """``BatchPrefillWithPagedKVCacheWrapper.run`` as ``gqa_paged_prefill_causal_h*_kv*_d*_ps*``."""

    owner = "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper"
    label = f"{owner}.run"
    parameters = routing.signature_of(
        *("q", "k_cache", "v_cache", "qo_indptr", "kv_indptr", "kv_indices", "sm_scale"),
        kv_last_page_len=None,
    )
    plan_signatures = (
        "self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, "
        "num_kv_heads, head_dim_qk, page_size",
    )
    run_signatures = (
        "self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, "
        "lse=None, return_lse=False, lse_base='log2', lse_layout='NH', enable_pdl=None, "
        "window_left=None, sinks=None",
    )
    definitions = ("gqa_paged_prefill_causal_h*", "gqa_paged_prefill_h*")
    # The second is the name in FlashInfer's own traces, which is causal as well.
    prefixes = ("gqa_paged_prefill_causal", "gqa_paged_prefill")
    causal = True
    queries = "qo_indptr"
    keys = "paged_kv_indptr"
    last_page_len = "paged_kv_last_page_len"


# ---------------------------------------------------------------------------------------- rows


class RaggedRoute(AttentionRoute):
    """Route for ``BatchPrefillWithRaggedKVCacheWrapper.run``, named by its head sizes.

    ``gqa_ragged_prefill_causal_h*_kv*_d*`` if keys and values have the same size; otherwise, as in
    latent attention with unabsorbed projections, ``mla_ragged_prefill_causal_h*_qk*_vo*``.
    """

    owner = "flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper"
    label = f"{owner}.run"
    parameters = routing.signature_of("q", "k", "v", "qo_indptr", "kv_indptr", "sm_scale")
    plan_signatures = ("self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk",)
    run_signatures = (
        "self, q, k, v, *args, q_scale=None, k_scale=None, v_scale=None, o_scale=None, out=None, "
        "lse=None, return_lse=False, lse_base='log2', lse_layout='NH', enable_pdl=None",
    )
    definitions = (
        "gqa_ragged_prefill_causal_h*",
        "gqa_ragged_h*",
        "mla_ragged_prefill_causal_h*",
    )
    untemplated = ("mla_*",)
    queries = "qo_indptr"
    keys = "kv_indptr"
    key_buffer = "_kv_indptr_buf"

    def refusal(self, wrapper: Any) -> Optional[str]:
        """Return why a plan matches no definition: values and outputs may have other offsets."""
        keys, queries = wrapper._kv_indptr_buf, wrapper._qo_indptr_buf
        if getattr(wrapper, "_v_indptr_buf", keys) is not keys:
            return "offsets of values"
        if getattr(wrapper, "_o_indptr_buf", queries) is not queries:
            return "offsets of outputs"
        return None

    def names(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[str, ...]:
        """Return the names for these heads and head sizes."""
        if not q.dim() == k.dim() == v.dim() == 3 or k.shape[:2] != v.shape[:2]:
            raise UnroutableError("shapes")
        heads, size, out = q.shape[1], q.shape[2], v.shape[2]
        if size != k.shape[2]:
            raise UnroutableError("shapes")
        if size != out:
            if k.shape[1] != heads:  # which the name cannot express
                raise UnroutableError("shapes")
            return (f"mla_ragged_prefill_causal_h{heads}_qk{size}_vo{out}",)
        sizes = f"h{heads}_kv{k.shape[1]}_d{size}"
        # The second is the name in FlashInfer's own traces.
        return f"gqa_ragged_prefill_causal_{sizes}", f"gqa_ragged_{sizes}"

    def understand(
        self,
        wrapper: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *args: Any,
        out: Optional[torch.Tensor] = None,
        lse: Optional[torch.Tensor] = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: Optional[bool] = None,
        **options: Any,
    ) -> Understood:
        """Read the object; see `Route.understand`."""
        if args or options:
            refuse_options(args, options)
        plan = self.planned(wrapper, q)
        refuse_standing(wrapper)
        if getattr(wrapper, "_sinks", None) is not None:  # set by engines
            raise UnroutableError("attention sinks")
        refuse_prefill(wrapper, lse_base, lse_layout)
        k, v = self._rows(wrapper, plan, k, v)
        shapes = self.shapes(wrapper, plan, q, k, v)
        if out is not None or lse is not None:
            refuse_buffers(out, lse, shapes.out, q)
        return Understood(
            shapes.name,
            (q, k, v, wrapper._qo_indptr_buf, plan.keys, scale_of(wrapper, shapes)),
            (wrapper, out, lse, return_lse, enable_pdl),
        )

    def _rows(
        self, wrapper: Any, plan: Planned, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the used part of keys and values as ``[total_kv, num_kv_heads, head_dim]``."""
        if k.dtype is not plan.dtype or v.dtype is not plan.dtype:
            raise UnroutableError("dtype")
        if wrapper._kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        if k.shape[0] == plan.total or is_capturing():
            return k, v
        if plan.total is None:
            self.measure(plan)
        return k[: plan.total], v[: plan.total]


class DecodeAdapter(AttentionAdapter):
    """Routes batch decode on paged keys and values."""

    route = DecodeRoute()


class PrefillAdapter(AttentionAdapter):
    """Routes batch prefill on paged keys and values."""

    route = PrefillRoute()


class RaggedAdapter(AttentionAdapter):
    """Routes batch prefill on ragged keys and values."""

    route = RaggedRoute()
