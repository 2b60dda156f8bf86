"""What each command prints, as help, as JSON and in words, and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from importlib import metadata
from typing import TYPE_CHECKING, Any

from recorders.common import Normaliser, common, scratch
from recorders.datasets import DAMAGED, HARDWARE, sample_lines, write_damaged, write_sample

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = (
    *("", "run", "replay", "compare", "build", "report", "report summary", "report best"),
    *("report scores", "report coverage", "report regressions", "report merge"),
    *("report visualize", "export", "import", "solution", "solution unpack", "solution pack"),
    *("validate", "apply", "apply explain", "apply list", "apply build", "doctor", "trace"),
    *("trace summary", "sanitize", "calibrate", "timers", "timers list", "timers check"),
    *("cache", "cache list", "cache prune", "adapters", "adapters list", "plugins"),
    *("plugins list", "plugins show", "plugins doctor", "plugins new"),
)
DEFINITIONS = (
    *("fused_add_rmsnorm_h512", "gemm_n256_k256", "gqa_paged_decode_h8_kv2_d64_ps1"),
    *("mean_squared_error_h1024", "moe_routing_renorm_topk4_e32", "rmsnorm_h512"),
    "rope_with_cos_sin_cache_neox_style_d64_rd64",
)
QUICK = ["--device", "cpu", "--seed", "1", "--iterations", "3", "--warmup-runs", "1"]
QUICK += ["--num-trials", "1"]


class Session:
    """Runs commands in a folder and keeps what they print."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self.root = root
        self.entries: dict[str, Any] = {}
        known = "".join(sample_lines()[:400])
        self._normaliser = Normaliser(folder, root, known)

    def run(self, *args: str, keep: str = "all", **environment: str) -> None:
        """Run a command.

        Of its JSON is kept all, all but the values of measurements (``"facts"``), or the keys and
        types alone (``"shape"``); with the latter two nothing of what it says to humans.
        """
        done = subprocess.run(
            ["env", *(f"{key}={value}" for key, value in environment.items()),
             sys.executable, "-m", "flashinfer_bench", *args],
            capture_output=True, text=True, check=False, cwd=self.folder, timeout=600,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        shown = [*(f"{key}={value}" for key, value in environment.items()), "fib", *args]
        entry: dict[str, Any] = {"exit": done.returncode, "stdout": self._output(done.stdout)}
        if keep == "all":
            entry["stderr"] = self.lines(done.stderr)
        else:
            entry["stdout"] = shape_of(entry["stdout"], facts=keep == "facts")
        self.entries[self._normaliser.text(" ".join(shown))] = entry

    def _output(self, text: str) -> Any:
        if text.lstrip()[:1] in ("{", "["):
            return self._normaliser.value(json.loads(text))
        return self.lines(text)

    def lines(self, text: str) -> list[str]:
        """Return normalised lines."""
        return [line.rstrip() for line in self._normaliser.text(text).splitlines()]

    def files(self, name: str, digests: bool = True) -> None:
        """Keep which files are in a folder, and their digests."""
        folder = self.folder / name
        listed = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.endswith(".lock"):
                place = self._normaliser.text(str(path.relative_to(folder)))
                digest = sha256(path.read_bytes()).hexdigest()[:12]
                listed[place] = digest if digests else "file"
        self.entries[f"files of {name}"] = listed


def shape_of(value: Any, facts: bool = False) -> Any:
    """Return the keys and types of JSON; a list has the union of what its elements have.

    With `facts` only numbers with a fraction are replaced.
    """
    if isinstance(value, dict):
        return {key: shape_of(one, facts) for key, one in value.items()}
    if isinstance(value, list):
        shapes = [shape_of(one, facts) for one in value]
        return shapes if facts else _distinct(shapes)
    if isinstance(value, float) or (isinstance(value, int) and not facts):
        return "<bool>" if isinstance(value, bool) else "<number>"
    return value if facts else f"<{type(value).__name__}>"


def _distinct(values: list[Any]) -> list[Any]:
    return [
        json.loads(text) for text in sorted({json.dumps(one, sort_keys=True) for one in values})
    ]


def record(root: Path, runs: int = 1) -> dict[str, Any]:
    """Return an entry for each command line."""
    return common([_record(root) for _ in range(runs)])


def _record(root: Path) -> dict[str, Any]:
    with scratch() as folder:
        session = Session(folder, root)
        write_sample(root, folder / "data")
        for part in (_help, _usage, _damaged, _reports, _apply, _transfer, _plugins, _machine,
                     _runs):  # fmt: skip
            part(session)
            print(f"{len(session.entries)} commands", file=sys.stderr, flush=True)
        return session.entries


def _help(session: Session) -> None:
    for command in COMMANDS:
        session.run(*command.split(), "--help")
    scripts = metadata.entry_points(group="console_scripts")
    ours = {one.name for one in scripts if one.name in ("fib", "flashinfer-bench")}
    session.entries["scripts"] = sorted(ours)


def _usage(session: Session) -> None:
    session.run()
    session.run("--version")
    session.run("reprot")
    session.run("run", "--no-such-option")
    session.run("validate", "--local", "nowhere")
    session.run("validate")
    session.run("run", "--local", "data", "--definition", "nothing_of_this_name")
    session.run("run", "--local", "data", "--rtol", "-1")
    session.run("run", "--local", "data", "--required-matched-ratio", "2")
    session.run("run", "--local", "data", "--device", "cuda:0", *QUICK[2:])
    session.run("run", "--local", "data", "--executor", "nobody")
    session.run("run", "--local", "data", "--timer", "nobody")
    session.run("report", "best", "--local", "data", "--definition", "gem")
    session.run("report", "summary", "--local", "data", "--hub", "a/b", HF_HUB_OFFLINE="1")
    session.run("apply", "explain", "data", "nothing_of_this_name")
    session.run("compare", "baseline_gemm", "nobody", "--local", "data")
    session.run("plugins", "show", "nobody")
    session.run("plugins", "list", FIB_STRICT_PLUGINS="perhaps")
    session.run("plugins", "list", "--json", FIB_NO_PLUGINS="1")


def _damaged(session: Session) -> None:
    for name in DAMAGED:
        folder = name.replace(" ", "-")
        write_damaged(name, session.folder / folder)
        session.run("validate", "--local", folder, "--json")
        session.run("validate", folder, "--strict", "--errors-only")
        session.run("doctor", folder, "--json")
        session.run("sanitize", "--local", folder, "--dry-run", "--json")
        session.run("trace", "summary", "--local", folder, "--json")
        session.run("report", "summary", "--local", folder, "--json")
        session.run("apply", "list", folder, "--json", "--hardware", HARDWARE)
        session.run("export", folder, "-o", f"{folder}.tar", "--json")
        session.run("doctor", folder, "--repair", "--orphans", "--json")
        session.files(folder)
    session.run("validate", "--local", "sound", "lines", "--json", "--layer", "trace")
    for name in ("sound", "workloads"):
        write_damaged(name, session.folder / name)
        session.run("sanitize", "--local", name, "--with-traces", "--max-elements", "100", "--json")
        session.files(name)


def _reports(session: Session) -> None:
    data = ("--local", "data")
    session.run("validate", *data, "--json")
    session.run("validate", *data, "--mutants", "--json", "--definition", "rmsnorm_h512")
    session.run("doctor", "data", "--json")
    session.run("trace", "summary", *data, "--json")
    for form in ("json", "csv", "markdown", "table"):
        session.run("report", "summary", *data, "--format", form)
        session.run("report", "best", *data, "--format", form)
        session.run("report", "scores", *data, "--format", form)
        session.run("report", "coverage", *data, "--format", form)
    session.run("report", "summary", *data, "--json", "--op-type", "gemm", "--hardware", "NVIDIA")
    session.run("report", "summary", *data, "--json", "--baseline-author", "alice")
    session.run("report", "best", *data, "--json", "--author", "bob", "alice", "--op-type", "op")
    session.run("report", "best", *data, "--json", "--top", "9", "--baseline", "baseline",
                "--definition", "gemm_n256_k256")  # fmt: skip
    session.run("report", "scores", *data, "--json", "--by-solution", "--op-type", "gemm", "op")
    session.run("report", "scores", *data, "--json", "--reference", "--p", "0.5", "1", "2")
    session.run("report", "scores", *data, "--json", "--baseline", "alice")
    session.run("report", "coverage", *data, "--json", "--gaps", "--strict")
    since = ("--since", "2026-02-01")
    session.run("report", "regressions", *data, *since, "--json")
    session.run("report", "regressions", *data, *since, "--improvements", "--threshold", "1.3")
    session.run("report", "regressions", *data, *since, "--until", "2026-02-02", "--json")
    session.run("report", "visualize", *data, "-o", "page.html")
    session.run("report", "merge", *data, "sound", "-o", "merged")
    session.files("merged")
    traces = ("--baseline-traces", "data", "--candidate-traces", "data")
    few = ("--solution", "alice_rmsnorm_inplace", "frank_rmsnorm_cpp", "dave_rmsnorm_null_pointer")
    session.run("compare", *traces, "--definition", "rmsnorm_h512", *few, "--json")
    gemm = "data/traces/gemm/gemm_n256_k256.jsonl"
    session.run("compare", "--baseline-traces", gemm, "--candidate-traces",
                "data/traces/rmsnorm/rmsnorm_h512.jsonl", "--json")  # fmt: skip


def _apply(session: Session) -> None:
    for name in (HARDWARE, "NVIDIA Test"):
        session.run("apply", "list", "data", "--hardware", name, "--json")
        for definition in DEFINITIONS:
            session.run("apply", "explain", "data", definition, "--hardware", name, "--json")
    here = ("--hardware", HARDWARE)
    session.run("apply", "list", "data", *here)
    session.run("apply", "explain", "data", "rmsnorm_h512", *here)
    tight = ("--max-atol", "1e-6", "--max-rtol", "1e-6")
    session.run("apply", "explain", "data", "gemm_n256_k256", *here, *tight, "--json")
    session.run("apply", "explain", "data", "gemm_n256_k256", *here, "--json", "--axes", "M=1")
    session.run("apply", "build", "data", *here, "-j", "1", "--no-helper", "--json")


def _transfer(session: Session) -> None:
    session.run("export", "data", "-o", "all.tar", "--json")
    few = ("--definition", "rmsnorm_h512", "--no-traces")
    session.run("export", "data", "-o", "few.tar.gz", *few, "--json")
    session.run("import", "all.tar", "--into", "again", "--json")
    session.files("again")
    session.run("import", "few.tar.gz", "--into", "again", "--json")
    session.run("import", "all.tar", "--into", "sound", "--json")
    session.run("import", "old-layout", "--into", "new", "--json")
    session.files("new")
    solution = "data/solutions/frank/rmsnorm/rmsnorm_h512/frank_rmsnorm_cpp.json"
    session.run("solution", "unpack", solution, "-o", "unpacked", "--json")
    session.files("unpacked")
    session.run("solution", "pack", "unpacked", "-o", "packed/one.json", "--json")
    session.files("packed")


def _plugins(session: Session) -> None:
    session.run("plugins", "list", "--json")
    for plugin in ("python", "triton", "flashinfer", "cpu", "fib-builder-tvmffi"):
        session.run("plugins", "show", plugin, "--json")
    session.run("plugins", "list", "--kind", "timer", "--json")
    session.run("plugins", "doctor", "--json")
    session.run("plugins", "new", "my-lang", "--author", "Ann <ann@example.org>")
    session.files("fib-builder-my-lang")
    session.run("adapters", "list", "--json")
    session.run("adapters", "list", "--check", "--json")


def _machine(session: Session) -> None:
    session.run("timers", "list", "--json")
    session.run("timers", "check", "--device", "cpu", "--json", keep="shape")
    session.run("calibrate", "--device", "cpu", "--show", "--json")
    session.run("calibrate", "--device", "cpu", "--json", keep="shape")
    session.run("calibrate", "--device", "cpu", "--show", "--json", keep="shape")


def _runs(session: Session) -> None:
    one = ("--local", "data", "--definition", "rmsnorm_h512")
    session.run("build", *one, "--device", "cpu", "-j", "1", "--compile-only", "--json")
    session.run("build", *one, "--device", "cpu", "-j", "1", "--json")
    session.run("cache", "list", "--json", keep="shape")
    session.run("cache", "prune", "--older-than", "30d", "--json")
    session.run("cache", "prune", "--all", "--dry-run", "--json", keep="shape")
    alone = ("--solution", "alice_rmsnorm_inplace")  # of several the faster one comes first
    session.run("run", *one, *alone, *QUICK, "--json", keep="facts")
    session.run("run", *one, *alone, *QUICK, "--resume", "--json")
    session.run("run", *one, "--solution", "carol_rmsnorm_fp32_out", *QUICK, "--strict",
                "--no-save-results", "--json", keep="facts")  # fmt: skip
    session.run("replay", *one, "--solution", "alice_rmsnorm_inplace", "--last", "1",
                "--latency-tolerance", "1000", "--json", keep="facts")  # fmt: skip
    session.run("compare", "alice_rmsnorm_inplace", "carol_rmsnorm_fp32_out", *one, "--device",
                "cpu", "--seed", "1", "--json", keep="shape")  # fmt: skip
    session.run("cache", "prune", "--all", "--json", keep="shape")
