"""What the plans of MLA wrappers say of their runs.

All of it is read from the wrapper after it has planned, once per plan, and kept until it plans
again. Of the arrays of a plan kernels read the page numbers alone from the buffers that the wrapper
has: offsets and lengths they take from the schedule, which nobody else can read. A ``plan`` that an
engine has put in the place of a wrapper's own may write a schedule, and leave the buffers as they
were (SGLang's for CUDA graphs does). So runs of such wrappers are not routed.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_adapters_flashinfer.common import capturing
from fib_adapters_flashinfer.planned import FAILED
from flashinfer_bench.integration.routing import UnroutableError

if TYPE_CHECKING:
    import torch

ARRAYS = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
"""What a plan is made of. The wrapper keeps each in a buffer, ``_qo_indptr_buf``."""

REPLACED = "plan replaced by the caller"
"""Reason: what the wrapper has may be of an earlier plan."""

LSE_ANY, LSE_NEVER, LSE_ALWAYS = "any", "never", "always"


class Host(NamedTuple):
    """What of a plan is decided on the host.

    Attributes
    ----------
    stage : str
        ``"decode"`` or ``"prefill"``; empty if it is neither.
    problem : str, optional
        Why runs of the plan are of no definition.
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
    """Work out what runs of a plan are.

    Parameters
    ----------
    qo_indptr, kv_indptr : torch.Tensor
        int32[batch_size + 1]. Offsets of queries in tokens, of keys in pages.
    kv_lens : torch.Tensor
        int32[batch_size]. Keys of each request, in tokens.
    page_size : int
        Tokens in a page.

    Returns
    -------
    Host
        One of prefill may still not be causal.
    """
    queries, pages, lens = (each.tolist() for each in _on_host(qo_indptr, kv_indptr, kv_lens))
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


def _on_host(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors on the CPU, with one transfer at most."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return tensors
    import torch

    sizes = [tensor.numel() for tensor in tensors]
    device = next(tensor.device for tensor in tensors if tensor.device.type != "cpu")
    joined = torch.cat([tensor.flatten().to(device) for tensor in tensors]).cpu()
    return torch.split(joined, sizes)


# -------------------------------------------------------------------------------------- plans


class Plan:
    """What is known of one plan of one wrapper.

    Attributes
    ----------
    info : Any
        The schedule. A new plan has a new one.
    host : Host
        What is decided on the host.
    problem : str, optional
        Why runs of the plan are of no definition.
    static : bool
        Whether buffers are the caller's, for CUDA graphs: what they hold may change at each replay.
    qo_indptr, kv_indptr, kv_indices : torch.Tensor
        What definitions get. Offsets are copies where the caller could change them in place, since
        kernels keep to what they were when the plan was made.
    known : tuple
        The shapes that were seen last, and the name of their definition.
    """

    __slots__ = (
        "_last",
        "buffer",
        "dtype",
        "host",
        "info",
        "known",
        "kv_indices",
        "kv_indptr",
        "kv_len_arr",
        "lse",
        "packed",
        "page_size",
        "problem",
        "qo_indptr",
        "static",
    )

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

    def is_of(self, wrapper: Any) -> bool:
        """Return whether the wrapper has not planned since."""
        return owner_of(wrapper)._plan_info is self.info

    def _last_page_len(self) -> Optional[torch.Tensor]:
        if self.page_size == 1:
            return None
        last: torch.Tensor = (self.kv_len_arr - 1) % self.page_size + 1
        return last

    def last_page_len(self) -> Optional[torch.Tensor]:
        """Return how many tokens each last page has, int32[batch_size]; None if pages have one.

        For CUDA graphs it is worked out in each run, so that replays work it out again.
        """
        return self._last_page_len() if self.static else self._last

    def indices(self) -> torch.Tensor:
        """Return the pages, int32[num_kv_indices]: all of the buffer while a graph is captured."""
        found: torch.Tensor = self.buffer if self.static and capturing() else self.kv_indices
        return found

    def name(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        ckv_cache: torch.Tensor,
        kpe_cache: torch.Tensor,
    ) -> str:
        """Return the definition that a run with such tensors is of."""
        seen = (q_nope.shape, q_pe.shape, ckv_cache.shape, kpe_cache.shape, q_nope.dtype)
        known = self.known
        if known[0] == seen:
            name = known[1]
        else:
            name = self._examine(*seen)
            self.known = (seen, name)
        return name

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
    """Return what a run takes its state from; up to 0.6 that is the wrapper itself."""
    return getattr(wrapper, "_planned_backend", None) or wrapper


def _contract_of(wrapper: Any) -> tuple[tuple[bool, bool], str, Optional[str]]:
    """Return what a plan demands of its runs, as later releases have it written down.

    Returns
    -------
    packed : tuple of bool
        Whether queries, and whether keys, have to be one tensor each.
    lse : str
        Whether runs may, must or must not ask for sums.
    problem : str, optional
        What no definition has.
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


class Plans:
    """The plans of all wrappers that are alive."""

    def __init__(self) -> None:
        # By identity: to look an object up by a weak reference costs a hash of it each time.
        self._known: dict[int, tuple[weakref.ref[Any], Plan]] = {}
        # The schedule that was there when a plan raised: until there is another one, the object may
        # be the new plan's in part.
        self._failed: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def note(self, wrapper: Any, host: Optional[Host]) -> Plan:
        """Read the plan that a wrapper has, and keep it."""
        plan = Plan(wrapper, host)
        key, known = id(wrapper), self._known
        known[key] = (weakref.ref(wrapper, lambda _gone: known.pop(key, None)), plan)
        return plan

    def forget(self, wrapper: Any) -> None:
        """Drop what is known of a wrapper."""
        self._known.pop(id(wrapper), None)
        if self._failed:
            self._failed.pop(wrapper, None)

    def refuse(self, wrapper: Any) -> None:
        """Have runs of a wrapper refused until it has another plan: the last one raised."""
        self.forget(wrapper)
        self._failed[wrapper] = getattr(owner_of(wrapper), "_plan_info", None)

    def of(self, wrapper: Any) -> Plan:
        """Return the plan that a run of a wrapper uses.

        Raises
        ------
        UnroutableError
            If it has none; one that was not seen and cannot be read now; or one that was not made
            by FlashInfer.
        """
        if "plan" in vars(wrapper):
            raise UnroutableError(REPLACED)
        found = self._known.get(id(wrapper))
        if found is not None and found[0]() is wrapper and found[1].is_of(wrapper):
            return found[1]
        if getattr(owner_of(wrapper), "_plan_info", None) is None:
            raise UnroutableError("not planned")
        if self._failed and self._failed.get(wrapper) is owner_of(wrapper)._plan_info:
            raise UnroutableError(FAILED)
        if capturing():
            raise UnroutableError("plan not seen before the capture")
        return self.note(wrapper, None)


plans = Plans()
"""The plans of this process."""
