"""The page on stopping rules tells what the rules declare, and its examples work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.stopping import plan
from flashinfer_bench.bench.stopping.registry import RULES

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "stopping-rules.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rules_and_parameters_are_those_declared(rule):
    assert f"| `{rule.name}` | {rule.summary} |" in TEXT
    rows = [line for line in TEXT.splitlines() if line.startswith(f"| `{rule.name}` | `")]
    assert rows == [
        f"| `{rule.name}` | `{one.name}` | {one.default:g} "
        f"| {one.allowed} | {one.unit} | {one.help} |"
        for one in rule.parameters()
    ]


def test_default_limits():
    assert f"| `min_samples` | `--min-samples` | {plan.DEFAULT_MIN_SAMPLES} | 1 |" in TEXT
    assert f"| `max_samples` | `--max-samples` | {plan.DEFAULT_MAX_SAMPLES} |" in TEXT
    assert f"| `max_seconds` | `--max-timing-seconds` | {plan.DEFAULT_MAX_SECONDS:g} |" in TEXT


def test_the_file_is_one(tmp_path):
    (text,) = blocks("yaml")
    (tmp_path / "bench.yaml").write_text(text, encoding="utf-8")
    config = BenchmarkConfig.from_yaml(tmp_path / "bench.yaml")
    assert plan.TimingPlan.of(config).rule.values["target"] == 0.005
    assert config.definition_config["gemm_n4096_k4096"].stop_params == {"target": 0.001}


def test_the_options_are_some():
    (text,) = blocks("bash")
    known = {*re.findall(r"`(--[a-z-]+)`", TEXT), "--local", "--stop-rule", "--stop-param"}
    assert {*re.findall(r"(--[a-z-]+)", text)} <= known


def test_the_program_does_what_its_comments_say():
    (text,) = blocks("python")
    names: dict = {}
    for line in text.splitlines():
        code, _, comment = line.partition("  # ")
        code = code.strip()
        if not comment:
            exec(code, names)
        else:
            said = comment.partition(":")[0] if comment.startswith("False") else comment
            assert repr(eval(code, names)) == said.strip()
