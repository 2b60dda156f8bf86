"""The page of the op families says what the records of the plugin say."""

import re
from pathlib import Path

import pytest

import fib_ops_llm
from fib_ops_llm import dsa_sparse_attention, dsa_topk_indexer, lowbit, sampling, work
from flashinfer_bench.plugins import default_catalog

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "op-families.md"
HEAD = "| op types | evaluator | settings | keys of `apply` |\n|---|---|---|---|\n"


def names(patterns):
    listed = [f"`{one}`" for one in patterns]
    return " or ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)


def judged_by(spec):
    ends = (("an input", spec.inputs), ("an output", spec.outputs))
    needs = " and ".join(f"{what} {names(some)}" for what, some in ends if some)
    return f"`{spec.name}`, with {needs}" if needs else f"`{spec.name}`"


def row(catalog, op_type):
    """Return the row of an op type, made from the records."""
    evaluators = [judged_by(one.spec) for one in catalog.evaluators if op_type in one.spec.op_types]
    settings = dict(fib_ops_llm.SETTINGS.get(op_type, {}))
    settings |= settings.pop("extra", {})
    told = ", ".join(f"`{name}` {value}" for name, value in settings.items())
    builders = catalog.key_builders
    keys = [f"`{one.name}`" for one in builders if op_type.strip("*") in one.spec.op_types]
    shown = "; ".join(evaluators) or "`default`"
    cells = (f"`{op_type}`", shown, told, *(keys or ["variable axes"]))
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_table_is_made_from_the_records(page):
    catalog = default_catalog()
    family = catalog.family_of("gemm").spec
    # The page says that inputs are drawn as usual, and that a function counts the work.
    assert (family.inputs, family.evaluator, family.key_axes) == (None, "", ())
    assert catalog.family_of("gemm").load(family.work) is work.work
    rows = [row(catalog, op_type) for op_type in family.op_types]
    (narrow,) = [one.spec for one in catalog.evaluators if one.spec.dtypes]
    rows.append(f"| any, with an input of {names(narrow.dtypes)} | `{narrow.name}` | | |")
    assert page.partition(HEAD)[2].partition("\n\n")[0].splitlines() == rows


def test_every_setting_is_there_with_its_default(page):
    told = dict(re.findall(r"`(\w+)`\s\(([\d.]+)\)", page))
    assert told == {
        "lowbit_element_cap": f"{lowbit.ELEMENT_CAP:g}",
        "lowbit_error_budget": f"{lowbit.ERROR_BUDGET:g}",
        "sampling_validation_trials": "100",
        "sampling_tvd_threshold": f"{sampling.TVD_THRESHOLD:g}",
        "sampling_bias_threshold": f"{sampling.BIAS_THRESHOLD:g}",
        "dsa_relative_rms": f"{dsa_sparse_attention.RMS_LIMIT:g}",
        "dsa_score_slack": f"{dsa_topk_indexer.SCORE_SLACK:g}",
        "dsa_reference_overlap": f"{dsa_topk_indexer.OVERLAP:g}",
    }


def test_every_family_has_a_section_with_the_same_lines(page):
    titles = re.findall(r"^## .*: (`.*)$", page, re.MULTILINE)
    named = [name for title in titles for name in re.findall(r"`([^`]+)`", title)]
    assert named == list(default_catalog().family_of("gemm").spec.op_types)
    for title in titles:
        section = page.partition(f": {title}\n")[2].partition("\n## ")[0]
        listed = re.findall(r"^\| (\w[\w ]*) \|", section, re.MULTILINE)
        wanted = ["drawn", "tolerance", "correct if", "keys", "bytes", "operations"]
        assert [one for one in listed if one != "from files"] == wanted
