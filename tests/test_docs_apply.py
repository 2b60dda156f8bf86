"""What is said of apply is true: its pages' commands and programs run, and name all there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from flashinfer_bench import env
from flashinfer_bench.apply import ApplyConfig
from flashinfer_bench.apply.dispatch.stats import REASONS
from flashinfer_bench.apply.selection import ReasonKind

ROOT = Path(__file__).parent.parent
HOW_TO = (ROOT / "docs" / "how-to" / "apply.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "apply.md").read_text(encoding="utf-8")


# A part of what the page does: compilers have tests of their own, and take their time.
QUICKLY = {
    "--iterations 20": "--solutions alice_rmsnorm_inplace bob_rmsnorm_rows carol_rmsnorm_fp32_out",
    "fib apply build sample": "--no-helper",
}


def section(text: str, title: str) -> str:
    return re.split(r"\n##+ ", text.partition(f"\n## {title}\n")[2])[0]


def rows(text: str) -> list[str]:
    """Return what stands in the first column of the tables."""
    return [
        name
        for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    ]


def test_every_field_of_the_settings_is_there_with_its_default() -> None:
    table = section(REFERENCE, "Settings")
    found = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", table, re.MULTILINE))
    wanted = {field.name: field.default for field in fields(ApplyConfig)}
    assert {name: default.strip("`") for name, default in found.items()} == {
        name: f'"{value}"' if isinstance(value, str) else str(value)
        for name, value in wanted.items()
    }


def test_every_rule_of_eligibility_is_there() -> None:
    assert sorted(rows(section(REFERENCE, "What may run").partition("###")[0])) == sorted(
        ReasonKind.__args__
    )


def test_every_reason_for_a_miss_is_there() -> None:
    assert sorted(rows(section(HOW_TO, "See what happens"))) == sorted(REASONS)


def test_every_variable_is_there() -> None:
    known = {variable.name for variable in env.VARIABLES if "APPLY" in variable.name}
    assert known <= set(rows(section(REFERENCE, "Environment")))


def script() -> str:
    """Return a shell script that does what the how-to tells its reader to do."""
    parts = ["set -euo pipefail", 'fib() { "$PYTHON" -m flashinfer_bench "$@"; }']
    parts.append('python() { "$PYTHON" -W error "$@"; }')
    for number, (language, text) in enumerate(
        re.findall(r"^```(\w+)\n(.*?)^```$", HOW_TO, re.MULTILINE | re.DOTALL)
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
@pytest.mark.timeout(300)
@pytest.mark.torch
@pytest.mark.plugin("python")
def test_the_how_to_can_be_followed(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FIB_")}
    variables = {
        "PYTHON": sys.executable,
        "FIB_CACHE_PATH": str(tmp_path / "cache"),
        "FIB_LOCK_PATH": os.environ["FIB_LOCK_PATH"],
        "CUDA_VISIBLE_DEVICES": "",  # the page records on the CPU
    }
    text = script()
    for command, options in QUICKLY.items():
        assert f"{command}\n" in text
        text = text.replace(f"{command}\n", f"{command} {options}\n")
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=tmp_path,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    counted = re.findall(r"^Stats\(hits=(\d+), fallbacks=(\d+), errors=0", done.stdout, re.M)
    assert counted == [("1", "1"), ("1", "1")]
    (told,) = re.findall(r"^It prints `(.*)`\.$", HOW_TO, re.MULTILINE)
    assert f"{told}\n" in done.stdout
    assert "Traceback" not in done.stderr
