"""FlashInfer-Bench plugin: routes calls of FlashInfer's APIs through apply and tracing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from flashinfer_bench.plugins import AdapterSpec, Availability, CommandSpec, hookimpl

__all__ = ["fib_register_adapters", "fib_register_commands"]

_PLANNED = ("plan", "begin_forward", "run", "run_return_lse")
_NORMS = ("rmsnorm", "fused_add_rmsnorm", "gemma_rmsnorm", "gemma_fused_add_rmsnorm")

# Name, factory, what is patched (a module or class, and its functions), and what it computes.
_ADAPTERS: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (
    (
        *("flashinfer.norm", "norm:NormAdapter", "flashinfer.norm", _NORMS),
        "RMSNorm, alone and fused with an addition",
    ),
    (
        *("torch.linear", "linear:LinearAdapter", "torch.nn.functional", ("linear",)),
        "linear layers without a bias, as matrix products",
    ),
    (
        *("flashinfer.decode", "attention:DecodeAdapter"),
        *("flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper", _PLANNED),
        "grouped-query attention: decode on paged keys and values",
    ),
    (
        *("flashinfer.prefill", "attention:PrefillAdapter"),
        *("flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper", _PLANNED),
        "grouped-query attention: causal prefill on paged keys and values",
    ),
    (
        *("flashinfer.ragged", "attention:RaggedAdapter"),
        *("flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper", _PLANNED),
        "grouped-query and latent attention: causal prefill on ragged keys and values",
    ),
    (
        *("flashinfer.mla", "mla:MLAAdapter"),
        *("flashinfer.mla.BatchMLAPagedAttentionWrapper", ("plan", "run")),
        "multi-head latent attention on paged keys and values: decode and causal prefill",
    ),
    (
        # A function that every release with templates has; others are found after the import.
        *("flashinfer.templates", "templates:TemplateAdapter"),
        *("flashinfer.activation", ("silu_and_mul",)),
        "all other functions with a trace template (FlashInfer 0.6.10 or later)",
    ),
)


@hookimpl
def fib_register_adapters() -> tuple[AdapterSpec, ...]:
    """Register the hand-written adapters and the generated one."""
    return tuple(
        AdapterSpec(
            name=name,
            targets=tuple(f"{owner}.{function}" for function in functions),
            factory=f"{__name__}.{factory}",
            probe=f"{__name__}:{'probe_torch' if name == 'torch.linear' else 'probe'}",
            # Hand-written adapters take precedence.
            priority=10 if name == "flashinfer.templates" else 50,
            summary=summary,
        )
        for name, factory, owner, functions, summary in _ADAPTERS
    )


@hookimpl
def fib_register_commands() -> tuple[CommandSpec, ...]:
    """Register ``fib adapters``, which lists the adapters of all plugins."""
    return (
        CommandSpec(
            name="adapters",
            factory=f"{__name__}.command:app",
            priority=840,
            summary="Show which library functions can be routed.",
        ),
    )


_FLASHINFER = "pip install 'flashinfer-python>=0.5.3,<0.8'"
_TORCH = "pip install torch numpy safetensors"


def probe() -> Availability:
    """Return whether FlashInfer is installed; supported functions are determined when patching."""
    if find_spec("flashinfer") is None:
        return Availability(False, "flashinfer is not installed", _FLASHINFER)
    found = probe_torch()
    return Availability(True, f"flashinfer {_version_of('flashinfer-python')}") if found else found


def probe_torch() -> Availability:
    """Return whether torch is installed."""
    if find_spec("torch") is None:
        return Availability(False, "torch is not installed", _TORCH)
    return Availability(True, f"torch {_version_of('torch')}")


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # a folder on the path without distribution metadata
        return "of unknown version"
