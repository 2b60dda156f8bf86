"""MLA over a paged cache: ``flashinfer.mla.BatchMLAPagedAttentionWrapper``.

One wrapper class serves decode and prefill, so which definition a run is of follows from its plan:
decode if every request has one query, prefill if the plan is causal, and none otherwise.

Definitions know pages by their offsets alone, or by these and the length of each last page; the
wrapper knows the length of each request. A plan whose lengths do not fill its pages is none of a
definition's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional

from fib_adapters_flashinfer.common import capturing, fill, first_output, neutral
from fib_adapters_flashinfer.mla_plans import (
    ARRAYS,
    LSE_ALWAYS,
    LSE_ANY,
    owner_of,
    plans,
    read_host,
)
from fib_adapters_flashinfer.signatures import expects
from flashinfer_bench.integration.adapter import PatchSpec
from flashinfer_bench.integration.routing import (
    Route,
    RouteAdapter,
    Understood,
    UnroutableError,
    signature_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from flashinfer_bench.integration.routing import RouteFactory

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

_ANYTHING = (Exception,)


# --------------------------------------------------------------------------------------- runs


class Rest(NamedTuple):
    """What a run is handed over with.

    Attributes
    ----------
    wrapper : object
        Whose run it is.
    out, lse : torch.Tensor, optional
        Buffers of the caller.
    return_lse : bool
        Whether sums are returned.
    """

    wrapper: Any
    out: Optional[torch.Tensor]
    lse: Optional[torch.Tensor]
    return_lse: bool


class MLARun(Route):
    """Runs of ``BatchMLAPagedAttentionWrapper``."""

    label = f"{WRAPPER}.run"
    parameters = signature_of(
        *_RUN, "kv_indptr", "kv_indices", "sm_scale", qo_indptr=None, kv_last_page_len=None
    )
    definitions = DEFINITIONS

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
        """Say which definition a run is of."""
        if options:
            _refuse_options(options)
        if profiler_buffer is not None or return_lse_base_on_e or o_scale is not None:
            raise UnroutableError("option of the run")
        if kv_len is not None or page_table is not None:
            raise UnroutableError("page table of the run")
        plan = plans.of(wrapper)
        if plan.problem is not None:
            raise UnroutableError(plan.problem)
        q_nope, q_pe = _pair(query, q_nope, q_pe, plan.packed[0], wrapper)
        ckv_cache, kpe_cache = _pair(kv_cache, ckv_cache, kpe_cache, plan.packed[1], wrapper)
        owner = owner_of(wrapper)
        if plan.host.stage == "prefill" and not owner._causal:
            raise UnroutableError("not causal")
        name = plan.name(q_nope, q_pe, ckv_cache, kpe_cache)
        wanted = bool(return_lse) or lse is not None
        if plan.lse is not LSE_ANY and wanted is not (plan.lse is LSE_ALWAYS):
            raise UnroutableError("sums differ from the plan")
        if out is not None:
            _check_buffer(out, q_nope.shape, q_nope.dtype, q_nope.device)
        if lse is not None:
            _check_buffer(lse, q_nope.shape[:2], _types()[1], q_nope.device)
        offsets = None if plan.host.stage == "decode" else plan.qo_indptr
        inputs = (
            *(q_nope, q_pe, ckv_cache, kpe_cache, plan.kv_indptr, plan.indices()),
            *(owner._sm_scale, offsets, plan.last_page_len()),
        )
        return Understood(name, inputs, Rest(wrapper, out, lse, bool(return_lse)))

    def deliver(self, understood: Understood, result: Any) -> Any:
        """Return the output, and the sums if they are asked for; fill the caller's buffers."""
        rest: Rest = understood.rest
        if not rest.return_lse and rest.lse is None:
            return fill(rest.out, first_output(result))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise UnroutableError("no sums among the outputs")
        output, sums = fill(rest.out, result[0]), fill(rest.lse, result[1])
        return (output, sums) if rest.return_lse else output

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Have the wrapper compute both outputs into new tensors."""
        wrapper = understood.rest.wrapper
        owner = owner_of(wrapper)
        if owner is wrapper:
            return original(wrapper, *inputs[:4], return_lse=True)
        # The plan may forbid sums to its runs. The backend always has them.
        nothing = dict.fromkeys(_BACKEND_OPTIONS)
        return owner.run_from_wrapper(
            query=tuple(inputs[:2]),
            kv_cache=tuple(inputs[2:4]),
            return_lse=True,
            return_lse_base_on_e=False,
            **nothing,
        )

    def expects(self, original: Callable[..., Any]) -> Optional[str]:
        """Return why the parameters of ``run`` are not those that are known."""
        return _expects_run(original)


_expects_run = expects(*_RUN_SIGNATURES)
_BACKEND_OPTIONS = (
    *("out", "lse", "profiler_buffer", "kv_len", "page_table", "o_scale", "ckv_scale"),
    *("ckv_scale_arr", "kpe_scale", "sinks", "skip_softmax_threshold_scale_factor"),
    *("bmm1_scale", "bmm2_scale"),
)


@functools.lru_cache(maxsize=1)
def _types() -> tuple[Any, Any]:
    """Return the type of tensors, and the element type of sums; this module is light without."""
    import torch

    return torch.Tensor, torch.float32


def _refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse a call with options, known or not, that are not left out."""
    if any(not neutral(value) for value in options.values()):
        raise UnroutableError("option of the run")


def _pair(
    both: Any, first: Any, second: Any, packed: bool, wrapper: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two parts of queries or keys, as views.

    Parameters
    ----------
    both : tensor or tuple, optional
        Both parts: side by side in one tensor, as a pair, or in both forms at once.
    first, second : torch.Tensor, optional
        The parts on their own; not together with `both`.
    packed : bool
        Whether the plan has them side by side.
    wrapper : object
        Knows where one tensor is to be split.
    """
    if both is not None and first is None and second is None:
        both = _simplest(both)
        if isinstance(both, _types()[0]):
            width = owner_of(wrapper)._head_dim_ckv
            return both[..., :width], both[..., width:]
        first, second = both
    elif both is not None:
        raise UnroutableError("form of queries or keys")
    if not isinstance(first, _types()[0]) or not isinstance(second, _types()[0]):
        raise UnroutableError("form of queries or keys")
    if packed and not _side_by_side(first, second):
        raise UnroutableError("form of queries or keys")
    return first, second


def _simplest(both: Any) -> Any:
    """Return a tensor, or a pair of them, of what may hold both forms."""
    if isinstance(both, _types()[0]):
        return both
    if type(both) is tuple and len(both) == 2:
        whole = [each for each in both if isinstance(each, _types()[0])]
        if len(whole) == 2:
            return both
        if len(whole) == 1:
            return whole[0]
    raise UnroutableError("form of queries or keys")


def _side_by_side(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors are the parts of one, without a copy."""
    after = first.data_ptr() + first.shape[-1] * first.element_size()
    return first.stride() == second.stride() and after == second.data_ptr()


def _check_buffer(
    buffer: torch.Tensor, shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse a buffer that the original would refuse, so that it does."""
    if buffer.shape != shape or buffer.dtype != dtype or buffer.device != device:
        raise UnroutableError("buffer of the caller")


# ------------------------------------------------------------------------------------ adapter


class MLAAdapter(RouteAdapter):
    """Routes the runs of ``flashinfer.mla.BatchMLAPagedAttentionWrapper``."""

    routes: ClassVar[Mapping[str, RouteFactory]] = {f"{WRAPPER}.run": MLARun}

    def targets(self) -> Sequence[PatchSpec]:
        """Return ``run``, and ``plan``, whose arguments may be on the host."""
        problem = expects(*_PLAN_SIGNATURES)
        plan = PatchSpec(f"{WRAPPER}.plan", "method", "plan", "", problem, DEFINITIONS)
        return (*super().targets(), plan)

    def make_wrapper(self, spec: PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that routes runs, or one that reads plans."""
        return _planning(orig) if spec.name == "plan" else super().make_wrapper(spec, orig)


def _planning(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def plan(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        plans.forget(wrapper)
        try:
            result = original(wrapper, *args, **kwargs)
        except BaseException:
            plans.refuse(wrapper)
            raise
        _read_early(wrapper, args, kwargs)
        return result

    return plan


def _read_early(wrapper: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Read a plan from its arguments, where they are on the host and need no transfer."""
    try:
        given = {**dict(zip(ARRAYS, args, strict=False)), **kwargs}
        metadata = given.get("metadata")
        if metadata is not None:
            given = {key: getattr(metadata, key) for key in ARRAYS}
        queries, pages, lens = (given[key] for key in ("qo_indptr", "kv_indptr", "kv_len_arr"))
        if all(_is_on_host(each) for each in (queries, pages, lens)):
            page_size = owner_of(wrapper)._page_size
            plans.note(wrapper, read_host(queries, pages, lens, page_size))
        elif not capturing():
            plans.note(wrapper, None)
    except _ANYTHING:  # the plan stands; the run finds out, and counts the reason
        plans.forget(wrapper)


def _is_on_host(value: Any) -> bool:
    return isinstance(value, _types()[0]) and value.device.type == "cpu"
