"""What is said of engines, tracing and adapters is true: its programs run, its tables are whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from flashinfer_bench import env
from flashinfer_bench.integration.status import State
from flashinfer_bench.tracing import PolicyRegistry

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
IN_AN_ENGINE = DOCS / "how-to" / "use-in-an-engine.md"
COLLECT = DOCS / "how-to" / "collect-workloads.md"
ADAPTER = DOCS / "how-to" / "write-an-adapter.md"
TRACING = DOCS / "reference" / "tracing.md"
TEMPLATES = DOCS / "reference" / "flashinfer-templates.md"
STATES = DOCS / "reference" / "adapters.md"

pytestmark = [pytest.mark.timeout(300)]

ENGINE = """
import torch
from torch.nn.functional import linear

for rows in (5, 5, 9):
    linear(torch.randn(rows, 256), torch.randn(256, 256))
linear(torch.randn(5, 8), torch.randn(3, 8))  # of no definition of the sample
"""
# As the file in `site-packages` does, which this environment need not have.
START = "from flashinfer_bench.engines import at_startup; at_startup()\n"


def section(page: Path, title: str) -> str:
    text = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2]
    assert text, title
    return re.split(r"\n##+ ", text)[0]


def rows(text: str) -> set[str]:
    """Return what is named in the first column of the tables."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(tmp_path: Path):
    """Run a program or a script beside a copy of the sample dataset, and return what it printed."""
    shutil.copytree(ROOT / "examples" / "sample-dataset", tmp_path / "dataset")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FIB_")}
    variables = {
        **inherited,
        "PYTHON": sys.executable,
        "FIB_CACHE_PATH": str(tmp_path / "cache"),
        "FIB_LOCK_PATH": os.environ.get("FIB_LOCK_PATH", str(tmp_path / "locks")),
        "FIB_PROBE_TIMEOUT_S": "60",
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path / "flashinfer"),
        "CUDA_VISIBLE_DEVICES": "",
    }

    def go(*command: str, **more: str) -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**variables, **more},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    return go


# ------------------------------------------------------------------------------------- tables


def test_every_state_of_a_target_is_there() -> None:
    assert rows(section(STATES, "What became of it")) == set(get_args(State))


@pytest.mark.torch
def test_every_policy_is_there() -> None:
    policies = PolicyRegistry.get_instance()
    builtin = {"dump_all", "dump_int32", "dump_integers", "dump_none"}
    assert builtin <= rows(section(TRACING, "Which inputs are written"))
    assert builtin <= set(policies.dump_policies)
    kept = {name for name in policies.filter_policies if name.startswith("keep_")}
    assert kept == rows(section(TRACING, "Which calls are kept"))


def test_every_variable_is_there() -> None:
    known = {variable.name for variable in env.VARIABLES if "TRACING" in variable.name}
    assert known <= rows(section(TRACING, "Environment"))


@pytest.mark.torch
def test_every_count_is_there(tmp_path: Path) -> None:
    from flashinfer_bench.tracing import TracingRuntime

    counts = set(TracingRuntime(ROOT / "examples" / "sample-dataset").stats())
    assert counts == rows(section(TRACING, "`stats()`"))


def test_every_reason_to_sanitize_is_there() -> None:
    folder = ROOT / "core" / "src" / "flashinfer_bench" / "tracing" / "sanitize"
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    named = rows(section(COLLECT, "Clean it"))
    assert len(named) >= 9
    assert [name for name in named if f'"{name}"' not in source] == []


# ----------------------------------------------------------------------------------- programs


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.plugin("flashinfer", "python")
def test_an_engine_can_be_traced_and_served_as_the_page_says(run, tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(START + ENGINE)
    (look,) = blocks(IN_AN_ENGINE, "python")
    (tmp_path / "look.py").write_text(START + ENGINE + look)
    text = "".join(blocks(IN_AN_ENGINE, "bash"))
    names = "--definitions gemm_n256_k256 --solutions alice_gemm_out --device cpu --iterations 5"
    for old, new in {
        "pip install flashinfer-bench": ": pip install flashinfer-bench",
        "/data/my-dataset": "$PWD/dataset",
        "fib adapters list --check": "fib adapters list --check --json > checked.json",
        "--resume": f"--resume {names}",
        "python -m sglang.launch_server ...": "python look.py",
    }.items():
        assert old in text
        text = text.replace(old, new)
    shell = 'set -euo pipefail\nfib() { "$PYTHON" -m flashinfer_bench "$@"; }\n'
    shell += 'python() { "$PYTHON" "$@"; }\n'
    shown = run("bash", "-c", shell + text)
    told = [line for line in shown.splitlines() if line.startswith("{'torch.nn.functional.linear'")]
    summary = next(line for line in shown.splitlines() if line.startswith("gemm_n256_k256"))
    assert summary.split("\t")[:3] == ["gemm_n256_k256", "5", "2"]  # 3 of the sample, and 2
    assert len(told) == 2
    assert "'calls': 4, 'routed': 3, 'refused': {'definition not enabled': 1}" in told[1]
    assert "Stats(hits=3, fallbacks=0, errors=0, misses={})" in shown
    assert "path='torch.nn.functional.linear'" in shown


@pytest.mark.torch
@pytest.mark.plugin("flashinfer")
def test_the_programs_of_the_page_on_collecting_run(run) -> None:
    whole, handler = blocks(COLLECT, "python")
    serve = f"def serve():\n{''.join(f'    {each}' for each in ENGINE.splitlines(True))}\n"
    run(sys.executable, "-W", "error", "-c", f"{serve}\n{whole}\n{handler}\nuninstall()\nserve()")
    fib = (sys.executable, "-m", "flashinfer_bench")
    summary = run(*fib, "trace", "summary", "--local", "dataset")
    assert "gemm_n256_k256\t5\t2\t5\t" in summary
    shown = next(each for each in blocks(COLLECT, "console") if "trace summary" in each)
    header = summary.splitlines()[0]
    assert (
        header
        == "definition	workloads	traced	distinct_axes	blobs	blob_bytes	axes"
    )
    assert header in shown


@pytest.mark.torch
@pytest.mark.plugin("flashinfer")
def test_the_programs_of_the_reference_of_tracing_run(run) -> None:
    whole, policy = blocks(TRACING, "python")
    program = (
        "import types, torch\nengine = types.SimpleNamespace(run=lambda: [\n"
        "    torch.nn.functional.linear(torch.ones(rows, 256), torch.ones(256, 256))\n"
        "    for rows in range(300, 325)])\n"
        f"{whole.replace('/data/dataset', 'dataset')}\n{policy}\n"
        "with enable_tracing('dataset', config) as tracing:\n    engine.run()\n"
        "assert tracing.stats()['known'] == 2, tracing.stats()\n"  # two of 25 calls, seen before
    )
    assert "'written': 25" in run(sys.executable, "-W", "error", "-c", program)


@pytest.mark.torch
def test_an_adapter_can_be_put_on_by_hand_as_the_page_says(run, tmp_path: Path) -> None:
    files = [block for block in blocks(ADAPTER, "python") if block.startswith("# ")]
    for block in files:
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None
        (tmp_path / name[1]).write_text(block)
    by_hand, checked = (block for block in blocks(ADAPTER, "python") if block not in files)
    call = "import torch\ntorch.nn.functional.rms_norm(torch.ones(2, 8), (8,))"
    program = by_hand.replace("...  # the program runs", call)
    assert program != by_hand
    assert "[((2, 8), 1)]" in run(sys.executable, "-c", program)
    imports = "import inspect\nfrom flashinfer_bench.integration import PatchSpec\n"
    check = "print(expects(lambda input, weight: 0), expects(lambda x: 0))"
    shown = run(sys.executable, "-c", f"{imports}{checked}\n{check}")
    assert shown == "None the first parameters are x\n"


@pytest.mark.torch
@pytest.mark.plugin("flashinfer")
def test_a_function_with_a_template_is_routed_as_the_page_says(run) -> None:
    flashinfer = pytest.importorskip("flashinfer", reason="flashinfer is not installed")
    if not hasattr(flashinfer, "api_logging"):
        pytest.skip(f"flashinfer {flashinfer.__version__} has no trace templates")
    (program,) = blocks(TEMPLATES, "python")
    values = (
        "import torch\nv_a = v_b = torch.ones(7, 32, 128, dtype=torch.bfloat16)\n"
        "s_a = s_b = torch.zeros(7, 32)\ncalled = []\n"
    )
    body = "    called.append(1)\n    return v_a, s_a"
    program = program.replace("    ...\n    return v, s", body)
    run(sys.executable, "-c", f"{values}{program}\nassert called == [1]")
