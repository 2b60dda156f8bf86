"""FlashInfer-Bench plugin: routes the calls of FlashInfer's APIs through apply and tracing."""

from __future__ import annotations

from fib_adapters_flashinfer import targets
from flashinfer_bench.plugins import AdapterSpec, hookimpl

__all__ = ["fib_register_adapters"]


def _record(
    name: str, factory: str, patched: tuple[str, ...], summary: str, *, priority: int = 50
) -> AdapterSpec:
    probe = "probe_torch" if name.startswith("torch.") else "probe"
    return AdapterSpec(
        name=name,
        targets=patched,
        factory=f"{__name__}.{factory}",
        probe=f"{__name__}.probe:{probe}",
        priority=priority,
        summary=summary,
    )


@hookimpl
def fib_register_adapters() -> tuple[AdapterSpec, ...]:
    """Register the adapters: those that are written by hand, and what is generated."""
    return (
        _record(
            "flashinfer.norm",
            "norm:NormAdapter",
            targets.NORM,
            "RMSNorm, alone and fused with an addition",
        ),
        _record(
            "torch.linear",
            "linear:LinearAdapter",
            targets.LINEAR,
            "linear layers without a bias, as matrix products",
        ),
        _record(
            "flashinfer.decode",
            "decode:DecodeAdapter",
            targets.DECODE,
            "grouped-query attention: decode on paged keys and values",
        ),
        _record(
            "flashinfer.prefill",
            "prefill:PrefillAdapter",
            targets.PREFILL,
            "grouped-query attention: causal prefill on paged keys and values",
        ),
        _record(
            "flashinfer.ragged",
            "ragged:RaggedAdapter",
            targets.RAGGED,
            "grouped-query and latent attention: causal prefill on ragged keys and values",
        ),
        _record(
            "flashinfer.mla",
            "mla:MLAAdapter",
            targets.MLA,
            "multi-head latent attention on paged keys and values: decode and causal prefill",
        ),
        _record(
            "flashinfer.templates",
            "templates:TemplateAdapter",
            targets.TEMPLATES,
            "all other functions that carry a trace template, from FlashInfer 0.6.10 on",
            priority=10,  # where an adapter is written by hand, that one counts
        ),
    )
