"""Which of the project's distributions provides what: for messages where one is not installed."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Optional

from flashinfer_bench.errors import CapabilityError

_PROVIDED = {
    "fib-builder-python": {"builder": "python"},
    "fib-builder-tilelang": {"builder": "tilelang"},
    "fib-builder-triton": {"builder": "triton"},
    "fib-builder-tvmffi": {"builder": "cpp cuda"},
    "fib-compare": {"command": "compare replay"},
    "fib-datasets": {
        "command": "doctor export import sanitize solution trace",
        "layer": "baseline benchmark",
    },
    "fib-judge": {"command": "calibrate", "measurement": "verified"},
    "fib-ops-llm": {
        "evaluator": "dsa_sparse_attention dsa_topk_indexer lowbit sampling",
        "key_builder": "gemm gqa mla",
        "op_family": "dsa_* gemm gqa* mla* moe nsa_* sampling",
    },
    "fib-report": {"command": "report_coverage report_regressions report_scores report_visualize"},
    "fib-sandbox-linux": {"sandbox": "linux"},
    "fib-testing": {"command": "plugins_new"},
    "fib-timing-cuda": {
        "command": "timers",
        "timer": "cuda_event cuda_graph cupti do_bench",
    },
}
"""By distribution and kind: names, of op types patterns, and of builders languages."""


def provider_of(kind: str, name: str) -> Optional[str]:
    """Return the distribution to install for a record; None if none of ours provides it."""
    wanted = name.replace(" ", "_")
    for distribution, kinds in _PROVIDED.items():
        if any(fnmatchcase(wanted, each) for each in kinds.get(kind, "").split()):
            return distribution
    return None


def missing_commands(group: str, known: set[str]) -> dict[str, str]:
    """Return words of commands that are not installed, with what provides them.

    Parameters
    ----------
    group : str
        ``report`` for its subcommands; empty for those of ``fib``.
    known : set of str
        Words of the commands that are there.
    """
    found = {}
    for distribution, kinds in _PROVIDED.items():
        for name in kinds.get("command", "").split():
            prefix, _, word = name.rpartition("_")
            if prefix == group and word not in known:
                found[word] = distribution
    return found


def require_family(op_type: str, *, known: bool) -> None:
    """Refuse an op type of which something special is known, but not here.

    Judged by rules that do not fit it, wrong solutions would pass and right ones fail.

    Parameters
    ----------
    op_type : str
        Of a definition.
    known : bool
        Whether a family that is installed has it.

    Raises
    ------
    CapabilityError
        If none has it, and one of our distributions would.
    """
    distribution = provider_of("op_family", op_type)
    if distribution is not None and not known:
        raise CapabilityError(
            f"Op type {op_type!r} needs what {distribution} knows of it, which is not installed.",
            hint=f"pip install {distribution}",
        )
