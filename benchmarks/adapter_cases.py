"""Calls of patched functions that `adapter_overhead` times, and the same without the adapters."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from apply_dispatch import definition, tensor

from flashinfer_bench.routing.patch_manager import resolve
from flashinfer_bench.routing.routes import Route, Understood, route_calls, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashinfer_bench.data import Definition

    Timed = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

STAND_INS = Path(__file__).parents[1] / "plugins" / "adapters_flashinfer" / "tests"


class Case(NamedTuple):
    """A call of a patched function, and the same call without the adapter."""

    name: str
    target_ns: int | None
    patched: Timed
    definition: Definition
    answer: Any
    alone: Timed | None = None
    """The patched call with an original that does nothing."""
    own: Timed | None = None
    """What the caller does for the call itself: it does not count."""


NORM = definition(
    {"hidden_states": tensor("rows", "hidden"), "weight": tensor("hidden")},
    {"output": tensor("rows", "hidden")},
    name="rmsnorm_h128",
    body="eps = 1e-6",  # the route asks for that of the reference
    hidden=128,
)
DECODE = definition(
    {
        "q": tensor("batch", "heads", "dim"),
        "k_cache": tensor("pages", "page", "kv_heads", "dim"),
        "v_cache": tensor("pages", "page", "kv_heads", "dim"),
        "kv_indptr": tensor("offsets", dtype="int32"),
        "kv_indices": tensor("total", dtype="int32"),
        "sm_scale": {"shape": None, "dtype": "float32"},
    },
    {"output": tensor("batch", "heads", "dim"), "lse": tensor("batch", "heads", dtype="float32")},
    name="gqa_paged_decode_h8_kv2_d64_ps1",
    heads=8,
    kv_heads=2,
    dim=64,
    page=1,
)


class LeastRoute(Route):
    """As little as there is to a route."""

    label = "library.norm"
    parameters = signature_of("hidden_states", "weight", eps=1e-6)
    definitions = ("rmsnorm_h*",)

    def understand(self, input: Any, weight: Any, eps: float = 1e-6) -> Understood:
        """Name the definition by the last axis."""
        return Understood(f"rmsnorm_h{input.shape[-1]}", (input, weight, eps))

    def deliver(self, understood: Understood, result: Any) -> Any:
        """Return what was computed."""
        return result


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def least() -> Iterator[Case]:
    def norm(input: Any, weight: Any, eps: float = 1e-6) -> Any:
        raise AssertionError("a solution answers")

    wrapper = route_calls(LeastRoute(), norm)
    yield Case("least route", None, (wrapper, (bf16(4, 128), bf16(128)), {}), NORM, bf16(4, 128))


@contextlib.contextmanager
def put_on(adapter: Any) -> Iterator[None]:
    """Put the wrappers of an adapter on what there is of its targets."""
    undo = []
    try:
        for spec in adapter.targets():
            target = resolve(spec.path)
            undo.append((target.owner, target.attribute, target.found))
            wrapper = adapter.make_wrapper(spec, target.function)
            setattr(target.owner, target.attribute, wrapper)
        yield
    finally:
        for owner, attribute, found in reversed(undo):
            setattr(owner, attribute, found)


def around_nothing(adapter: Any, name: str) -> Any:
    """Return the wrapper of an adapter around a function that does nothing."""
    spec = next(each for each in adapter.targets() if each.name == name)
    return adapter.make_wrapper(spec, lambda *_args, **_kwargs: None)


def norms() -> Iterator[Case]:
    from flashinfer import norm

    from fib_adapters_flashinfer.norm import NormAdapter

    x, weight, out = bf16(4, 128), bf16(128), bf16(4, 128)
    alone = around_nothing(NormAdapter(), "rmsnorm")
    with put_on(NormAdapter()):
        args = (x, weight)
        timed: Timed = (norm.rmsnorm, args, {})
        yield Case("rmsnorm", 3000, timed, NORM, bf16(4, 128), (alone, args, {}))
        into = (norm.rmsnorm, args, {"out": out})
        yield Case("rmsnorm, out= (copies)", None, into, NORM, bf16(4, 128))


def planned(layout: str) -> Any:
    """Return a wrapper for 4 requests with 3 pages of one place each, planned."""
    from flashinfer import decode

    batch, each = 4, 3
    offsets = torch.arange(0, each * batch + 1, each, dtype=torch.int32)
    pages, last = (
        torch.arange(each * batch, dtype=torch.int32),
        torch.ones(batch, dtype=torch.int32),
    )
    made = decode.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(1 << 20, dtype=torch.uint8), kv_layout=layout
    )
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    made.plan(offsets, pages, last, 8, 2, 64, 1, **types)
    return made


def decodes() -> Iterator[Case]:
    from fib_adapters_flashinfer.attention import DecodeAdapter

    q, pair, both = bf16(4, 8, 64), (bf16(20, 1, 2, 64), bf16(20, 1, 2, 64)), bf16(20, 2, 1, 2, 64)
    out, lse = bf16(4, 8, 64), torch.zeros(4, 8)
    into = {"out": out, "lse": lse, "return_lse": True}
    # A part of the buffer of all tokens, and scales that say that nothing is calibrated.
    engine = {"k_scale": 1.0, "v_scale": 1.0, "out": bf16(9, 8, 64)[:4]}
    flat = tuple(each.view(20, 2, 64) for each in pair)
    alone = around_nothing(DecodeAdapter(), "run")
    with put_on(DecodeAdapter()):
        run, hnd = planned("NHD").run, planned("HND").run

        def anew(cache: Any) -> Any:
            return cache.permute(0, 1, 2, 3, 4)

        def halves(cache: Any) -> Any:
            return cache.split(64, dim=-1)

        def view(q: Any, cache: Any, **options: Any) -> Any:
            return run(q, anew(cache), **options)

        def split(q: Any, cache: Any, **options: Any) -> Any:
            return run(q, halves(cache), **options)

        def split_hnd(q: Any, cache: Any, **options: Any) -> Any:
            return hnd(q, halves(cache), **options)

        answer = run(q, pair, return_lse=True)
        packed = torch.cat(both.unbind(1), dim=-1)
        for name, timed, *own in (
            ("paged decode", (run, (q, pair), {})),
            ("paged decode, out= and lse= (copies)", (run, (q, pair), into)),
            ("paged decode, pages as rows", (run, (q, flat), {})),
            ("paged decode, one cache", (run, (q, both), {})),
            ("paged decode, as vLLM", (run, (q, both), engine)),
            ("paged decode, as vLLM, viewed anew", (view, (q, both), engine), anew, both),
            ("paged decode, one HND cache", (hnd, (q, both.transpose(2, 3)), {})),
            ("paged decode, as vLLM, HND", (hnd, (q, both.transpose(2, 3)), engine)),
            ("paged decode, as vLLM, packed", (split, (q, packed), engine), halves, packed),
            (
                "paged decode, as vLLM, packed HND",
                (split_hnd, (q, packed.transpose(1, 2)), engine),
                *(halves, packed.transpose(1, 2)),
            ),
        ):
            function, args, kwargs = timed
            wrapper = getattr(function, "__self__", None)
            whole = None if wrapper is None else (alone, (wrapper, *args), kwargs)
            itself: Timed | None = (own[0], (own[1],), {}) if own else None
            yield Case(name, 8000, timed, DECODE, answer, whole, itself)


def cases() -> Iterator[Case]:
    """Yield what is timed, each while it is patched."""
    yield from least()
    needed = ("flashinfer", "fib_adapters_flashinfer")
    missing = [each for each in needed if importlib.util.find_spec(each) is None]
    if missing:
        print(f"left out, as {' and '.join(missing)} cannot be imported", file=sys.stderr)
        return
    sys.path.insert(0, str(STAND_INS))
    cpu_flashinfer = importlib.import_module("cpu").cpu_flashinfer

    for area, made in (("norm", norms), ("decode", decodes)):
        with cpu_flashinfer(area):
            yield from made()
