"""What single pages say is true: their tables name all there is, their programs run."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from fib_tests import forked
from flashinfer_bench import env
from flashinfer_bench.apply import ApplyConfig
from flashinfer_bench.apply.dispatch import stats
from flashinfer_bench.apply.table import REASONS
from flashinfer_bench.bench import stopping
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.routing.patch_manager import State
from flashinfer_bench.tracing import PolicyRegistry

ROOT = Path(__file__).parent.parent
HOW_TO = ROOT / "docs" / "how-to"
REFERENCE = ROOT / "docs" / "reference"
APPLY, APPLY_REFERENCE = HOW_TO / "apply.md", REFERENCE / "apply.md"
IN_AN_ENGINE = HOW_TO / "use-in-an-engine.md"
COLLECT = HOW_TO / "collect-workloads.md"
ADAPTER = HOW_TO / "write-an-adapter.md"
TRACING = REFERENCE / "tracing.md"
TEMPLATES = REFERENCE / "flashinfer-templates.md"
STATES = REFERENCE / "adapters.md"
STOPPING = REFERENCE / "stopping-rules.md"

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


# A part of what the page does: compilers have tests of their own, and take their time.
QUICKLY = {
    "--iterations 20": "--solutions alice_rmsnorm_inplace bob_rmsnorm_rows carol_rmsnorm_fp32_out",
    "fib apply build sample": "--no-helper",
}


def section(page: Path, title: str) -> str:
    text = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2]
    assert text, title
    return re.split(r"\n##+ ", text)[0]


def rows(text: str) -> set[str]:
    """Return what is named in the first column of the tables."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`(]+)", cell) if name.strip(" ,)")}


def blocks(page: Path, language: str = r"\w+") -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(tmp_path: Path):
    """Run a program or a script beside a copy of the sample dataset, and return what it printed."""
    shutil.copytree(ROOT / "examples" / "sample-dataset", tmp_path / "dataset")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FIB_")}
    variables = {
        **inherited,
        "PYTHON": str(forked.python(tmp_path)),
        "FIB_APPLY_HELPER": "0",  # compiling it takes longer than all else
        "FIB_CACHE_PATH": str(tmp_path / "cache"),
        "FIB_LOCK_PATH": os.environ.get("FIB_LOCK_PATH", str(tmp_path / "locks")),
        "FIB_PROBE_TIMEOUT_S": "60",
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path / "flashinfer"),
        "CUDA_VISIBLE_DEVICES": "",
    }

    def go(*command: str, **more: str) -> str:
        done = forked.run(command, cwd=tmp_path, env={**variables, **more}, timeout=280)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    return go


# ------------------------------------------------------------------------------------- tables


def test_every_state_of_a_target_is_there() -> None:
    assert rows(section(STATES, "What was patched")) == set(get_args(State))


@pytest.mark.torch
def test_every_policy_is_there() -> None:
    builtin = {"dump_all", "dump_int32", "dump_integers", "dump_none"}
    assert builtin <= rows(section(TRACING, "Which inputs are written"))
    assert builtin <= set(PolicyRegistry.list_input_dump_policies())
    kept = {name for name in PolicyRegistry.list_filter_policies() if name.startswith("keep_")}
    assert kept == rows(section(TRACING, "Which calls are kept"))


def test_every_variable_of_tracing_is_there() -> None:
    known = {variable.name for variable in env.VARIABLES if "TRACING" in variable.name}
    assert known <= rows(section(TRACING, "Environment"))


@pytest.mark.torch
def test_every_count_is_there(tmp_path: Path) -> None:
    from flashinfer_bench.tracing import TracingRuntime

    counts = set(TracingRuntime(ROOT / "examples" / "sample-dataset").stats())
    assert counts == rows(section(TRACING, "`stats()`"))


def test_every_reason_to_sanitize_is_there() -> None:
    folder = ROOT / "plugins" / "datasets" / "src" / "fib_datasets" / "sanitize"
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    named = rows(section(COLLECT, "Clean it"))
    assert len(named) >= 9
    assert [name for name in named if f'"{name}"' not in source] == []


def test_every_field_of_the_settings_is_there_with_its_default() -> None:
    table = section(APPLY_REFERENCE, "Settings")
    found = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", table, re.MULTILINE))
    wanted = {field.name: field.default for field in fields(ApplyConfig)}
    assert {name: default.strip("`") for name, default in found.items()} == {
        name: f'"{value}"' if isinstance(value, str) else str(value)
        for name, value in wanted.items()
    }


def test_every_rule_of_eligibility_is_there() -> None:
    table = section(APPLY_REFERENCE, "What may run").partition("###")[0]
    assert rows(table) == set(REASONS.split())


def test_every_reason_for_a_miss_is_there() -> None:
    assert rows(section(APPLY, "See what happens")) == {
        reason for name, reason in vars(stats).items() if name.isupper()
    }


def test_every_variable_of_apply_is_there() -> None:
    known = {variable.name for variable in env.VARIABLES if "APPLY" in variable.name}
    assert known <= rows(section(APPLY_REFERENCE, "Environment"))


# ----------------------------------------------------------------------------------- programs


def script() -> str:
    """Return a shell script that does what the how-to tells its reader to do."""
    parts = ["set -euo pipefail", 'fib() { "$PYTHON" -m flashinfer_bench "$@"; }']
    parts.append('python() { "$PYTHON" -W error "$@"; }')
    for number, (language, text) in enumerate(
        re.findall(
            r"^```(\w+)\n(.*?)^```$", APPLY.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
    ):
        if language == "bash":
            parts.append(text)
            continue
        name = re.match(r"# (\w+\.py)\n", text)
        assert name is not None, f"a program without a name: {text[:80]}"
        end = f"END_OF_BLOCK_{number}"
        parts += [f"cat > {name[1]} <<'{end}'\n{text}{end}", f"python {name[1]}"]
    return "\n".join(parts)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.plugin("python")
def test_the_how_to_of_apply_can_be_followed(run, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = script()
    for command, options in QUICKLY.items():
        assert f"{command}\n" in text
        text = text.replace(f"{command}\n", f"{command} {options}\n")
    shown = run("bash", "-c", text)
    counted = re.findall(r"^Stats\(hits=(\d+), fallbacks=(\d+), errors=0", shown, re.M)
    assert counted == [("1", "1"), ("1", "1")]
    page = APPLY.read_text(encoding="utf-8")
    (told,) = re.findall(r"^It prints `(.*)`\.$", page, re.MULTILINE)
    assert f"{told}\n" in shown


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
    shell += f'python() {{ {sys.executable} "$@"; }}\n'  # an engine that imports torch itself
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
def test_the_programs_of_the_page_on_adapters_run(run, tmp_path: Path) -> None:
    files = [block for block in blocks(ADAPTER, "python") if block.startswith("# ")]
    for block in files:
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None
        (tmp_path / name[1]).write_text(block)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shown = run(sys.executable, "-W", "error", "try_it.py", FIB_PLUGINS="fib_torch_adapters")
    *answers, counted = shown.splitlines()
    assert answers == ["15.0", "3.0"]
    assert counted.partition(": ")[2][:-1] in ADAPTER.read_text(encoding="utf-8")
    delivered, counting, checked = (b for b in blocks(ADAPTER, "python") if b not in files)
    imports = "import collections, functools, inspect, types, torch\n"
    imports += "from flashinfer_bench.routing import *\nCALLS = collections.Counter()\n"
    check = """
x, buffer = torch.ones(2, 8), torch.zeros(2, 8)
assert deliver(None, types.SimpleNamespace(rest=buffer), x) is buffer and buffer.equal(x)
manager, adapter = PatchManager(), CountingAdapter()
manager.patch(*adapter.targets(), adapter.make_wrapper)
torch.nn.functional.rms_norm(x, (8,))
manager.unpatch_all()
print(*CALLS.values(), expects(lambda input, weight: 0), expects(lambda x: 0))"""
    shown = run(sys.executable, "-c", f"{imports}{delivered}\n{counting}\n{checked}\n{check}")
    assert shown == "1 None the first parameters are x\n"


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


# ------------------------------------------------------------------------------ stopping rules

TEXT = STOPPING.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["fixed", "rse"])
def test_rules_and_parameters_are_those_declared(name):
    rule = stopping.rules()[name]
    assert f"| `{rule.name}` | {rule.summary} |" in TEXT
    rows = [line for line in TEXT.splitlines() if line.startswith(f"| `{rule.name}` | `")]
    assert rows == [
        f"| `{rule.name}` | `{one.name}` | {one.default:g} "
        f"| {one.allowed} | {one.unit} | {one.help} |"
        for one in rule.parameters()
    ]


def test_default_limits_of_rules():
    assert f"| `min_samples` | `--min-samples` | {stopping.DEFAULT_MIN_SAMPLES} | 1 |" in TEXT
    assert f"| `max_samples` | `--max-samples` | {stopping.DEFAULT_MAX_SAMPLES} |" in TEXT
    assert f"| `max_seconds` | `--max-timing-seconds` | {stopping.DEFAULT_MAX_SECONDS:g} |" in TEXT


def test_the_file_of_rules_is_one(tmp_path):
    (text,) = blocks(STOPPING, "yaml")
    (tmp_path / "bench.yaml").write_text(text, encoding="utf-8")
    config = BenchmarkConfig.from_yaml(tmp_path / "bench.yaml")
    assert stopping.TimingPlan.of(config).rule.values["target"] == 0.005
    assert config.definition_config["gemm_n4096_k4096"].stop_params == {"target": 0.001}


def test_the_options_of_rules_are_some():
    (text,) = blocks(STOPPING, "bash")
    known = {*re.findall(r"`(--[a-z-]+)`", TEXT), "--local", "--stop-rule", "--stop-param"}
    assert {*re.findall(r"(--[a-z-]+)", text)} <= known


def test_the_program_does_what_its_comments_say():
    (text,) = blocks(STOPPING, "python")
    names: dict = {}
    for line in text.splitlines():
        code, _, comment = line.partition("  # ")
        code = code.strip()
        if not comment:
            exec(code, names)
        else:
            said = comment.partition(":")[0] if comment.startswith("False") else comment
            assert repr(eval(code, names)) == said.strip()
