"""Which of the project's distributions provides what, for messages about missing ones."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Optional

from flashinfer_bench._version import __version__
from flashinfer_bench.errors import CapabilityError

_PROVIDED = {
    "fib-adapters-flashinfer": {"command": "adapters"},
    "fib-agents": {"command": "mcp memcheck profile"},
    "fib-builder-python": {"builder": "python"},
    "fib-builder-tilelang": {"builder": "tilelang"},
    "fib-builder-triton": {"builder": "triton"},
    "fib-builder-tvmffi": {"builder": "cpp cuda"},
    "fib-compare": {"command": "compare info replay"},
    "fib-datasets": {
        "command": (
            "build doctor export import init new report_merge sanitize schema solution trace"
        ),
        "layer": "baseline benchmark",
        "source": "hub",
    },
    "fib-executor-ray": {"command": "fleet", "executor": "ray"},
    "fib-judge": {"command": "calibrate", "measurement": "verified", "stop_rule": "rse"},
    "fib-native-toolkit": {"command": "cache"},
    "fib-ops-llm": {
        "evaluator": "dsa_sparse_attention dsa_topk_indexer lowbit sampling",
        "key_builder": "gemm gqa mla",
        "op_family": "dsa_* gemm gqa* mla* moe nsa_* sampling",
        "tracing_policy": "keep_first_by_avg_seq_len keep_random_k",
    },
    "fib-report": {
        "command": (
            "apply report_best report_coverage report_regressions report_scores report_summary "
            "report_visualize show validate-render"
        )
    },
    "fib-sandbox-linux": {"sandbox": "linux"},
    "fib-serve": {"command": "serve submit"},
    "fib-testing": {"command": "plugins_new"},
    "fib-timing-cuda": {
        "command": "timers",
        "timer": "cuda_event cuda_graph cupti do_bench",
    },
}
"""Names by distribution and kind; patterns of op types for families, languages for builders."""


def provider_of(kind: str, name: str) -> Optional[str]:
    """Return the project's distribution that provides a record, or None."""
    wanted = name.replace(" ", "_")
    for distribution, kinds in _PROVIDED.items():
        if any(fnmatchcase(wanted, each) for each in kinds.get(kind, "").split()):
            return distribution
    return None


def provided_commands() -> dict[str, str]:
    """Return the distribution of each command, by its words: ``"report scores"``."""
    return {
        name.replace("_", " "): distribution
        for distribution, kinds in _PROVIDED.items()
        for name in kinds.get("command", "").split()
    }


def install_hint(distribution: str) -> str:
    """Return how to install one of the project's distributions, which are on no package index."""
    install = f"pip install --find-links dist {distribution}=={__version__}"
    return f"in a clone of flashinfer-bench: nox -s build, then {install}"


def not_installed(what: str, distribution: str) -> CapabilityError:
    """Return the error for something that a distribution of the project provides."""
    message = f"{what} is provided by {distribution}, which is not installed"
    return CapabilityError(message, hint=install_hint(distribution))


def clash() -> str:
    """Return a warning if another project's ``flashinfer-bench`` is installed; else ``""``."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        other = distribution("flashinfer-bench")
    except PackageNotFoundError:
        return ""
    # Ours has no modules.
    if not any(file.parts[0] == "flashinfer_bench" for file in other.files or ()):
        return ""
    return (
        f"flashinfer-bench {other.version} is another project with the same import name, and its "
        "files mix with these: pip uninstall flashinfer-bench, then reinstall "
        "flashinfer-bench-core with --force-reinstall --no-deps, or use separate environments"
    )


def require_family(op_type: str, *, known: bool) -> None:
    """Check that the op family of an op type is installed, if one of the project covers it.

    Under the default rules, wrong solutions could pass and correct ones fail.

    Parameters
    ----------
    op_type : str
        Op type of a definition.
    known : bool
        Whether an installed family covers it.

    Raises
    ------
    CapabilityError
        If none does, but a distribution of the project would.
    """
    distribution = provider_of("op_family", op_type)
    if distribution is not None and not known:
        raise CapabilityError(
            f"Op type {op_type!r} needs the plugin {distribution}, which is not installed.",
            hint=install_hint(distribution),
        )
