"""MLA over a paged cache: ``flashinfer.mla.BatchMLAPagedAttentionWrapper``.

One wrapper class serves decode and prefill, so the plan determines the definition of a run: decode
if every request has one query, prefill if the plan is causal, and none otherwise.

Definitions describe pages by their offsets alone, or by offsets and the length of each last page;
the wrapper stores the length of each request. A plan whose lengths do not fill its pages matches no
definition.

The plan is read from the wrapper once after planning, and cached until the next plan. Of a plan's
arrays, kernels read only the page numbers from the wrapper's buffers. Offsets and lengths come from
the schedule, which cannot be read from outside. If an engine has replaced a wrapper's ``plan``, its
replacement may write a schedule and leave the buffers unchanged (as SGLang does for CUDA graphs).
Runs of such wrappers are therefore not routed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from fib_adapters_flashinfer.attention import (
    FAILED,
    AttentionAdapter,
    PlannedRoute,
    on_host,
    refuse_buffers,
)
from fib_adapters_flashinfer.helpers import PerObject
from flashinfer_bench import routing
from flashinfer_bench.routing import Understood, UnroutableError, is_capturing

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Arrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

ARRAYS = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
"""Arguments of a plan. The wrapper keeps each in a buffer, such as ``_qo_indptr_buf``."""

_FORM = "form of queries or keys"  # possibly of a future release


class Host(NamedTuple):
    """Properties of a plan that are determined on the host.

    Attributes
    ----------
    stage : str
        ``"decode"`` or ``"prefill"``; empty for neither.
    problem : str, optional
        The reason why runs of the plan match no definition.
    total_q, total_pages : int
        Last elements of ``qo_indptr`` and ``kv_indptr``.
    """

    stage: str
    problem: Optional[str]
    total_q: int
    total_pages: int


def read_host(arrays: Arrays, page_size: int) -> Host:
    """Determine the properties of a plan from its arrays.

    Parameters
    ----------
    arrays : tuple of torch.Tensor
        Offsets of queries in tokens and of keys in pages, int32[batch_size + 1] each, and the
        number of keys of each request in tokens, int32[batch_size].
    page_size : int
        Tokens per page.

    Returns
    -------
    Host
        A prefill may still turn out not to be causal.
    """
    queries, pages, lens = (each.tolist() for each in _fetched(*arrays))
    if len(queries) != len(lens) + 1 or len(pages) != len(lens) + 1:
        return Host("", "padded plan", 0, 0)
    total = Host("", None, queries[-1], pages[-1])
    counts = [end - begin for begin, end in itertools.pairwise(queries)]
    used = [end - begin for begin, end in itertools.pairwise(pages)]
    if used != [-(-length // page_size) for length in lens]:
        return total._replace(problem="kv lengths do not fill the pages")
    if queries[0] != 0:
        return total._replace(problem="queries do not begin at 0")
    if all(count == 1 for count in counts):
        return total._replace(stage="decode")
    if any(count > length for count, length in zip(counts, lens, strict=True)):
        return total._replace(problem="more queries than keys")
    return total._replace(stage="prefill")


def _fetched(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors on the CPU, using at most one transfer."""
    if on_host(*tensors):
        return tensors
    import torch

    sizes = [tensor.numel() for tensor in tensors]
    device = next(tensor.device for tensor in tensors if tensor.device.type != "cpu")
    joined = torch.cat([tensor.flatten().to(device) for tensor in tensors]).cpu()
    return torch.split(joined, sizes)


# -------------------------------------------------------------------------------------- plans


class Plan:
    """State of one plan of one wrapper.

    Attributes
    ----------
    info : Any
        The schedule. Each plan has a new one.
    host : Host
        Properties determined on the host.
    problem : str, optional
        The reason why runs of the plan match no definition.
    static : bool
        Whether buffers belong to the caller, for CUDA graphs: their content may change at each
        replay.
    qo_indptr, kv_indptr, kv_indices : torch.Tensor
        Inputs of definitions. Offsets are copied if the caller could change them in place, because
        kernels use the values at planning time.
    known : tuple
        The most recent shapes, and the name of their definition.
    """

    def __init__(self, wrapper: Any, arrays: Optional[Arrays] = None) -> None:
        owner = owner_of(wrapper)
        buffers: list[Any] = [getattr(owner, f"_{name}_buf", None) for name in ARRAYS]
        if any(buffer is None for buffer in buffers):
            raise UnroutableError("plan without page indices")
        qo_indptr, kv_indptr, kv_indices, kv_len_arr = buffers
        self.info = owner._plan_info
        self.page_size: int = owner._page_size
        self.dtype: Optional[torch.dtype] = getattr(owner, "_q_data_type", None)
        self.host = read_host(arrays or (qo_indptr, kv_indptr, kv_len_arr), self.page_size)
        self.static = bool(owner._use_cuda_graph)
        self.packed, self.lse, problem = _contract_of(wrapper)
        used = "profiler" if owner._use_profiler else None
        self.problem = used or problem or self.host.problem
        self.qo_indptr, self.kv_indptr = qo_indptr, kv_indptr
        self.kv_len_arr = kv_len_arr
        self.buffer, self.kv_indices = kv_indices, kv_indices[: self.host.total_pages]
        self._last: Optional[torch.Tensor] = None
        if not self.static:
            self.qo_indptr, self.kv_indptr = qo_indptr.clone(), kv_indptr.clone()
            self._last = self.last_page_len()
        self.known: tuple[Any, str] = (None, "")

    def last_page_len(self) -> Optional[torch.Tensor]:
        """Return the tokens on each last page, int32[batch_size]; None if pages hold one token.

        For CUDA graphs it is computed in each run, so that replays compute it again.
        """
        if self.page_size == 1 or self._last is not None:
            return self._last
        last: torch.Tensor = (self.kv_len_arr - 1) % self.page_size + 1
        return last

    def indices(self) -> torch.Tensor:
        """Return the pages, int32[num_kv_indices]; the whole buffer while a graph is captured."""
        found: torch.Tensor = self.buffer if self.static and is_capturing() else self.kv_indices
        return found

    def name(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        ckv_cache: torch.Tensor,
        kpe_cache: torch.Tensor,
    ) -> str:
        """Return the name of the definition for a run with such tensors."""
        seen = (q_nope.shape, q_pe.shape, ckv_cache.shape, kpe_cache.shape, q_nope.dtype)
        if self.known[0] != seen:
            self.known = (seen, self._examine(*seen))
        return self.known[1]

    def _examine(
        self, q: torch.Size, qpe: torch.Size, ckv: torch.Size, kpe: torch.Size, dtype: torch.dtype
    ) -> str:
        if not len(q) == len(qpe) == len(ckv) == len(kpe) == 3:
            raise UnroutableError("shape")
        if q[:2] != qpe[:2] or ckv[:2] != kpe[:2] or q[2] != ckv[2] or qpe[2] != kpe[2]:
            raise UnroutableError("shape")
        if q[0] != self.host.total_q or ckv[1] != self.page_size:
            raise UnroutableError("shape differs from the plan")
        if self.dtype is not None and dtype != self.dtype:
            raise UnroutableError("dtype differs from the plan")
        stage = "decode" if self.host.stage == "decode" else "prefill_causal"
        return f"mla_paged_{stage}_h{q[1]}_ckv{q[2]}_kpe{qpe[2]}_ps{self.page_size}"


def owner_of(wrapper: Any) -> Any:
    """Return the object with a run's state; up to release 0.6 the wrapper itself."""
    return getattr(wrapper, "_planned_backend", None) or wrapper


def _contract_of(wrapper: Any) -> tuple[tuple[bool, bool], Optional[bool], Optional[str]]:
    """Return the requirements of a plan for its runs, as recorded by later releases.

    Returns
    -------
    packed : tuple of bool
        Whether queries, and whether keys, must be one tensor each.
    lse : bool, optional
        Whether runs must or must not request log-sum-exp values; None if they may.
    problem : str, optional
        A property that no definition has.
    """
    contract = getattr(wrapper, "_input_contract", None)
    if contract is None:
        return (False, False), None, None
    packed = (contract.query_layout == "packed", contract.kv_cache_layout == "packed")
    plain = contract.output_scale == "none" and contract.scale_mode == "default"
    if not plain or contract.skip_softmax or contract.use_sinks:
        return packed, None, "scales, sinks or skipped softmax"
    if contract.output_dtype != wrapper._q_data_type:
        return packed, None, "output dtype"
    if contract.lse_mode == "basee":
        return packed, None, "sums to the base e"
    if contract.lse_mode == "base2":
        return packed, True, None
    free = wrapper._legacy_flat_csr_plan and not any(packed)
    return packed, None if free else False, None


class Refused(NamedTuple):
    """Marks a plan that raised: until the next plan, the object may be inconsistent."""

    info: Any
    problem: str = FAILED


plans: PerObject[Union[Plan, Refused]] = PerObject()
"""The plans of this process."""


def plan_of(wrapper: Any) -> Plan:
    """Return the plan that a run of a wrapper uses.

    Raises
    ------
    UnroutableError
        If there is no plan, it was not recorded and cannot be read now, or it was not made by
        FlashInfer; or if its runs match no definition.
    """
    if "plan" in vars(wrapper):
        # The wrapper's buffers may belong to an earlier plan.
        raise UnroutableError("plan replaced by the caller")
    plan, info = plans.find(wrapper), getattr(owner_of(wrapper), "_plan_info", None)
    if plan is None or plan.info is not info:
        if info is None:
            raise UnroutableError("not planned")
        if is_capturing():
            raise UnroutableError("plan not seen before the capture")
        plan = plans.keep(wrapper, Plan(wrapper))
    if plan.problem is not None or isinstance(plan, Refused):
        raise UnroutableError(plan.problem or FAILED)
    return plan


# --------------------------------------------------------------------------------------- runs


class MLARun(PlannedRoute):
    """Runs of ``BatchMLAPagedAttentionWrapper``."""

    owner = "flashinfer.mla.BatchMLAPagedAttentionWrapper"
    label = f"{owner}.run"
    methods = ("run", "plan")
    plan_signatures = (
        "self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, "
        "head_dim_kpe, page_size, causal, sm_scale, q_data_type, kv_data_type, use_profiler=False",
        "self, qo_indptr=None, kv_indptr=None, kv_indices=None, kv_len_arr=None, num_heads=None, "
        "head_dim_ckv=None, head_dim_kpe=None, page_size=None, causal=None, sm_scale=None, "
        "q_data_type=None, kv_data_type=None, use_profiler=False, *, metadata=None",
    )
    run_signatures = (
        "self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False, "
        "profiler_buffer=None, kv_len=None, page_table=None",
        "self, q_nope=None, q_pe=None, ckv_cache=None, kpe_cache=None, out=None, lse=None, "
        "return_lse=False, profiler_buffer=None, kv_len=None, page_table=None, "
        "return_lse_base_on_e=False, o_scale=None, *, query=None, kv_cache=None",
    )
    plans = plans
    parameters = routing.signature_of(
        *("q_nope", "q_pe", "ckv_cache", "kpe_cache", "kv_indptr", "kv_indices", "sm_scale"),
        qo_indptr=None,
        kv_last_page_len=None,
    )
    definitions = ("mla_paged_decode_h*", "mla_paged_prefill_causal_h*")
    untemplated = ("mla_paged_prefill*",)

    def note(self, wrapper: Any, arguments: dict[str, Any]) -> None:
        """Read a plan, from its arguments because these may be on the host."""
        given = arguments.get("metadata")
        named = arguments if given is None else {name: getattr(given, name) for name in ARRAYS}
        arrays = named["qo_indptr"], named["kv_indptr"], named["kv_len_arr"]
        readable = on_host(*arrays)
        if readable or not is_capturing():
            plans.keep(wrapper, Plan(wrapper, arrays if readable else None))

    def refuse(self, wrapper: Any) -> None:
        """Refuse runs of an object until it is planned again."""
        info = getattr(owner_of(wrapper), "_plan_info", None)
        plans.keep(wrapper, Refused(info))

    def understand(
        self,
        wrapper: Any,
        q_nope: Any = None,
        q_pe: Any = None,
        ckv_cache: Any = None,
        kpe_cache: Any = None,
        out: Optional[torch.Tensor] = None,
        lse: Optional[torch.Tensor] = None,
        return_lse: bool = False,
        profiler_buffer: Any = None,
        kv_len: Any = None,
        page_table: Any = None,
        return_lse_base_on_e: bool = False,
        o_scale: Any = None,
        *,
        query: Any = None,
        kv_cache: Any = None,
        **options: Any,
    ) -> Understood:
        """Determine the definition of a run."""
        given = (profiler_buffer, o_scale, *options.values())
        if return_lse_base_on_e or any(value is not None for value in given):
            raise UnroutableError("option of the run")
        if kv_len is not None or page_table is not None:
            raise UnroutableError("page table of the run")
        plan = plan_of(wrapper)
        q_nope, q_pe = _pair(query, q_nope, q_pe, plan.packed[0], wrapper)
        ckv_cache, kpe_cache = _pair(kv_cache, ckv_cache, kpe_cache, plan.packed[1], wrapper)
        owner = owner_of(wrapper)
        if plan.host.stage == "prefill" and not owner._causal:
            raise UnroutableError("not causal")
        name = plan.name(q_nope, q_pe, ckv_cache, kpe_cache)
        wanted = bool(return_lse) or lse is not None
        if plan.lse is not None and wanted is not plan.lse:
            raise UnroutableError("sums differ from the plan")
        if out is not None or lse is not None:
            refuse_buffers(out, lse, q_nope.shape, q_nope)
        offsets = None if plan.host.stage == "decode" else plan.qo_indptr
        inputs = (
            *(q_nope, q_pe, ckv_cache, kpe_cache, plan.kv_indptr, plan.indices()),
            *(owner._sm_scale, offsets, plan.last_page_len()),
        )
        return Understood(name, inputs, (wrapper, out, lse, bool(return_lse), None))

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Let the wrapper compute both outputs into new tensors."""
        wrapper = understood.rest[0]
        owner = owner_of(wrapper)
        if owner is wrapper:
            return original(wrapper, *inputs[:4], return_lse=True)
        # The plan may forbid log-sum-exp outputs, but the backend always supports them.
        nothing = dict.fromkeys(_BACKEND_OPTIONS)
        return owner.run_from_wrapper(
            query=tuple(inputs[:2]),
            kv_cache=tuple(inputs[2:4]),
            return_lse=True,
            return_lse_base_on_e=False,
            **nothing,
        )


_BACKEND_OPTIONS = (
    *("out", "lse", "profiler_buffer", "kv_len", "page_table", "o_scale", "ckv_scale"),
    *("ckv_scale_arr", "kpe_scale", "sinks", "skip_softmax_threshold_scale_factor"),
    *("bmm1_scale", "bmm2_scale"),
)


def _pair(
    both: Any, first: Any, second: Any, packed: bool, wrapper: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two parts of queries or keys, as views.

    Parameters
    ----------
    both : tensor or tuple, optional
        Both parts: concatenated in one tensor, as a pair, or in both forms at once.
    first, second : torch.Tensor, optional
        The separate parts; not together with `both`.
    packed : bool
        Whether the plan expects them concatenated.
    wrapper : object
        Determines where to split a concatenated tensor.
    """
    import torch

    if both is not None:
        if first is not None or second is not None:
            raise UnroutableError(_FORM)
        if type(both) is tuple:  # in both forms, the second is redundant
            whole = [each for each in both if isinstance(each, torch.Tensor)]
            both = whole[0] if len(whole) == 1 else both
        if isinstance(both, torch.Tensor):
            width = owner_of(wrapper)._head_dim_ckv
            return both[..., :width], both[..., width:]
        first, second = both if type(both) is tuple and len(both) == 2 else (None, None)
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        raise UnroutableError(_FORM)
    after = first.data_ptr() + first.shape[-1] * first.element_size()
    if packed and (first.stride() != second.stride() or after != second.data_ptr()):
        raise UnroutableError(_FORM)  # they are not parts of one tensor
    return first, second


# ------------------------------------------------------------------------------------ adapter


class MLAAdapter(AttentionAdapter):
    """Routes the runs of ``flashinfer.mla.BatchMLAPagedAttentionWrapper``."""

    route = MLARun()
