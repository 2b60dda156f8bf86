from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.compile.toolkit import content_digest, declared_style, package_name
from flashinfer_bench.data import Solution


def test_names_authors_and_descriptions_do_not_count(definition, make_solution):
    first = make_solution(name="one")
    second = first.model_copy(update={"name": "two", "author": "me", "description": "better"})
    assert content_digest(definition, first) == content_digest(definition, second)
    described = definition.model_copy(update={"description": "text", "tags": ["stage:decode"]})
    assert content_digest(definition, first) == content_digest(described, first)


@pytest.mark.parametrize(
    "change",
    [
        {"source": "def run(x, y):\n    return y + x\n"},
        {"files": {"main.py": "def run(x, y):\n    return x + y\n", "extra.h": ""}},
        {"language": "triton"},
        {"binding": "torch"},
        {"destination_passing_style": True},
        {"destination_passing_style": False},
        {"dependencies": ["cublas"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_the_build_changes_the_digest(definition, make_solution, change):
    assert content_digest(definition, make_solution()) != content_digest(
        definition, make_solution(**change)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"inputs": {"x": {"shape": ["n"], "dtype": "float32"}}},
        {"outputs": {"z": {"shape": ["n", "k"], "dtype": "float16"}}},
        {"outputs": {"w": {"shape": ["n", "k"], "dtype": "float32"}}},
        {"constraints": ["n > 0"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_interface_of_the_definition_counts(make_definition, make_solution, change):
    solution = make_solution()
    assert content_digest(make_definition(), solution) != content_digest(
        make_definition(**change), solution
    )


@pytest.mark.parametrize("style", [None, True, False])
def test_what_was_not_stated_stays_so_on_the_way_to_another_process(make_solution, style):
    stated = {} if style is None else {"destination_passing_style": style}
    for written in (
        make_solution(**stated).model_dump_json(),
        make_solution(**stated).to_json(),
        make_solution(**stated).with_unique_name().model_dump_json(exclude_none=True),
    ):
        again = Solution.model_validate_json(written)
        assert declared_style(again.spec) is style
        assert declared_style(Solution.model_validate(again.model_dump()).spec) is style


NAMES = st.text(min_size=1, max_size=60)


@given(name=NAMES, prefix=st.sampled_from(["fib_python", "", "9lives", "x"]))
def test_any_name_gives_an_identifier(name, prefix):
    digest = "0123456789abcdef" * 4
    found = package_name(prefix, Solution.model_construct(name=name), digest)
    assert found.isidentifier()
    assert found.isascii()
    assert found.endswith(digest)
    assert len(found) <= len(prefix) + 24 + 64 + 3
