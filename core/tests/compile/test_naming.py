import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.compile.toolkit import content_digest, package_name
from flashinfer_bench.data import Solution


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


NAMES = st.text(min_size=1, max_size=60)


@given(name=NAMES, prefix=st.sampled_from(["fib_python", "", "9lives", "x"]))
def test_any_name_gives_an_identifier(name, prefix):
    digest = "0123456789abcdef" * 4
    found = package_name(prefix, Solution.model_construct(name=name), digest)
    assert found.isidentifier()
    assert found.isascii()
    assert found.endswith(digest)
    assert len(found) <= len(prefix) + 24 + 64 + 3
