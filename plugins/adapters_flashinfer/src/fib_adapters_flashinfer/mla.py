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
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, Union

from fib_adapters_flashinfer.attention import (
    FAILED,
    Call,
    note_plans,
    on_host,
    refuse_buffers,
)
from fib_adapters_flashinfer.common import expects, with_lse
from fib_adapters_flashinfer.helpers import PerObject
from fib_adapters_flashinfer.live import TemplatedRoute
from flashinfer_bench import routing
from flashinfer_bench.routing import Understood, UnroutableError, is_capturing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch


WRAPPER = "flashinfer.mla.BatchMLAPagedAttentionWrapper"
DEFINITIONS = ("mla_paged_decode_h*", "mla_paged_prefill_causal_h*")

_RUN = ("q_nope", "q_pe", "ckv_cache", "kpe_cache")

_RUN_SIGNATURES = (
    "self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False, "
    "profiler_buffer=None, kv_len=None, page_table=None",
    "self, q_nope=None, q_pe=None, ckv_cache=None, kpe_cache=None, out=None, lse=None, "
    "return_lse=False, profiler_buffer=None, kv_len=None, page_table=None, "
    "return_lse_base_on_e=False, o_scale=None, *, query=None, kv_cache=None",
)
_PLAN_SIGNATURES = (
    "self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, "
    "page_size, causal, sm_scale, q_data_type, kv_data_type, use_profiler=False",
    "self, qo_indptr=None, kv_indptr=None, kv_indices=None, kv_len_arr=None, num_heads=None, "
    "head_dim_ckv=None, head_dim_kpe=None, page_size=None, causal=None, sm_scale=None, "
    "q_data_type=None, kv_data_type=None, use_profiler=False, *, metadata=None",
)

ARRAYS = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
"""Arguments of a plan. The wrapper keeps each in a buffer, such as ``_qo_indptr_buf``."""

FORM = "form of queries or keys"
"""Reason: an unknown form, possibly of a future release."""

REPLACED = "plan replaced by the caller"
"""Reason: the wrapper's buffers may belong to an earlier plan."""

LSE_ANY, LSE_NEVER, LSE_ALWAYS = "any", "never", "always"


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


def read_host(
    qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_lens: torch.Tensor, page_size: int
) -> Host:
    """Determine the properties of a plan from its arrays.

    Parameters
    ----------
    qo_indptr, kv_indptr : torch.Tensor
        int32[batch_size + 1]. Offsets of queries in tokens, of keys in pages.
    kv_lens : torch.Tensor
        int32[batch_size]. Number of keys of each request, in tokens.
    page_size : int
        Tokens per page.

    Returns
    -------
    Host
        A prefill may still turn out not to be causal.
    """
    queries, pages, lens = (each.tolist() for each in _fetched(qo_indptr, kv_indptr, kv_lens))
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

    def __init__(self, wrapper: Any, host: Optional[Host]) -> None:
        owner = owner_of(wrapper)
        buffers: list[Any] = [getattr(owner, f"_{name}_buf", None) for name in ARRAYS]
        if any(buffer is None for buffer in buffers):
            raise UnroutableError("plan without page indices")
        qo_indptr, kv_indptr, kv_indices, kv_len_arr = buffers
        self.info = owner._plan_info
        self.page_size: int = owner._page_size
        self.dtype: Optional[torch.dtype] = getattr(owner, "_q_data_type", None)
        self.host = host or read_host(qo_indptr, kv_indptr, kv_len_arr, self.page_size)
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
            self._last = self._last_page_len()
        self.known: tuple[Any, str] = (None, "")

    def _last_page_len(self) -> Optional[torch.Tensor]:
        if self.page_size == 1:
            return None
        last: torch.Tensor = (self.kv_len_arr - 1) % self.page_size + 1
        return last

    def last_page_len(self) -> Optional[torch.Tensor]:
        """Return the tokens on each last page, int32[batch_size]; None if pages hold one token.

        For CUDA graphs it is computed in each run, so that replays compute it again.
        """
        return self._last_page_len() if self.static else self._last

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


def _contract_of(wrapper: Any) -> tuple[tuple[bool, bool], str, Optional[str]]:
    """Return the requirements of a plan for its runs, as recorded by later releases.

    Returns
    -------
    packed : tuple of bool
        Whether queries, and whether keys, must be one tensor each.
    lse : str
        Whether runs may, must or must not request log-sum-exp values.
    problem : str, optional
        A property that no definition has.
    """
    contract = getattr(wrapper, "_input_contract", None)
    if contract is None:
        return (False, False), LSE_ANY, None
    packed = (contract.query_layout == "packed", contract.kv_cache_layout == "packed")
    plain = contract.output_scale == "none" and contract.scale_mode == "default"
    if not plain or contract.skip_softmax or contract.use_sinks:
        return packed, LSE_ANY, "scales, sinks or skipped softmax"
    if contract.output_dtype != wrapper._q_data_type:
        return packed, LSE_ANY, "output dtype"
    if contract.lse_mode == "basee":
        return packed, LSE_ANY, "sums to the base e"
    if contract.lse_mode == "base2":
        return packed, LSE_ALWAYS, None
    free = wrapper._legacy_flat_csr_plan and not any(packed)
    return packed, LSE_ANY if free else LSE_NEVER, None


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
        raise UnroutableError(REPLACED)
    plan, info = plans.find(wrapper), getattr(owner_of(wrapper), "_plan_info", None)
    if plan is None or plan.info is not info:
        if info is None:
            raise UnroutableError("not planned")
        if is_capturing():
            raise UnroutableError("plan not seen before the capture")
        plan = plans.keep(wrapper, Plan(wrapper, None))
    if plan.problem is not None or isinstance(plan, Refused):
        raise UnroutableError(plan.problem or FAILED)
    return plan


def _note(wrapper: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Read a plan from its arguments, if they are on the host and need no transfer."""
    given = {**dict(zip(ARRAYS, args, strict=False)), **kwargs}
    metadata = given.get("metadata")
    if metadata is not None:
        given = {key: getattr(metadata, key) for key in ARRAYS}
    queries, pages, lens = (given[key] for key in ("qo_indptr", "kv_indptr", "kv_len_arr"))
    if on_host(queries, pages, lens):
        host = read_host(queries, pages, lens, owner_of(wrapper)._page_size)
        plans.keep(wrapper, Plan(wrapper, host))
    elif not is_capturing():
        plans.keep(wrapper, Plan(wrapper, None))


def _refuse(wrapper: Any) -> None:
    info = getattr(owner_of(wrapper), "_plan_info", None)
    plans.keep(wrapper, Refused(info))


# --------------------------------------------------------------------------------------- runs


class MLARun(TemplatedRoute):
    """Runs of ``BatchMLAPagedAttentionWrapper``."""

    label = f"{WRAPPER}.run"
    parameters = routing.signature_of(
        *_RUN, "kv_indptr", "kv_indices", "sm_scale", qo_indptr=None, kv_last_page_len=None
    )
    definitions = DEFINITIONS
    untemplated = ("mla_paged_prefill*",)

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
        if plan.lse is not LSE_ANY and wanted is not (plan.lse is LSE_ALWAYS):
            raise UnroutableError("sums differ from the plan")
        if out is not None or lse is not None:
            refuse_buffers(out, lse, q_nope.shape, q_nope)
        offsets = None if plan.host.stage == "decode" else plan.qo_indptr
        inputs = (
            *(q_nope, q_pe, ckv_cache, kpe_cache, plan.kv_indptr, plan.indices()),
            *(owner._sm_scale, offsets, plan.last_page_len()),
        )
        return Understood(name, inputs, Call(wrapper, out, lse, bool(return_lse), None))

    def deliver(self, understood: Understood, result: Any) -> Any:
        """Return the output, and the log-sum-exp if requested; fill the caller's buffers."""
        call: Call = understood.rest
        return with_lse(result, call.out, call.lse, call.return_lse)

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Let the wrapper compute both outputs into new tensors."""
        wrapper = understood.rest.wrapper
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

    def expects(self, original: Callable[..., Any]) -> Optional[str]:
        """Return how the parameters of ``run`` differ from supported ones; None if they match."""
        return expects(*_RUN_SIGNATURES)(original)


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
            raise UnroutableError(FORM)
        if type(both) is tuple:  # in both forms, the second is redundant
            whole = [each for each in both if isinstance(each, torch.Tensor)]
            both = whole[0] if len(whole) == 1 else both
        if isinstance(both, torch.Tensor):
            width = owner_of(wrapper)._head_dim_ckv
            return both[..., :width], both[..., width:]
        first, second = both if type(both) is tuple and len(both) == 2 else (None, None)
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        raise UnroutableError(FORM)
    after = first.data_ptr() + first.shape[-1] * first.element_size()
    if packed and (first.stride() != second.stride() or after != second.data_ptr()):
        raise UnroutableError(FORM)  # they are not parts of one tensor
    return first, second


# ------------------------------------------------------------------------------------ adapter


class MLAAdapter(routing.RouteAdapter):
    """Routes the runs of ``flashinfer.mla.BatchMLAPagedAttentionWrapper``."""

    routes: ClassVar[Mapping[str, routing.RouteFactory]] = {f"{WRAPPER}.run": MLARun}

    def targets(self) -> Sequence[routing.PatchSpec]:
        """Return ``run``, and ``plan``, whose arguments may be on the host."""
        problem = expects(*_PLAN_SIGNATURES)
        plan = routing.PatchSpec(f"{WRAPPER}.plan", "method", "plan", "", problem, DEFINITIONS)
        return (*super().targets(), plan)

    def make_wrapper(self, spec: routing.PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that routes runs, or one that reads plans."""
        if spec.name == "plan":
            return note_plans(orig, plans, _note, _refuse)
        return super().make_wrapper(spec, orig)
