"""The rules for calling conventions, without a compiler."""

import json

import pytest

from fib_builder_tvmffi.exports import Signature, read_signature, style_of
from flashinfer_bench.errors import BuildError

RETURNS = Signature(("DLTensor*", "DLTensor*", "float"), "ffi.Tensor")


def in_one_list(returns, *parameters):
    """As releases up to 0.1.12 write it."""
    types = [{"type": name} for name in (returns, *parameters)]
    return {"type_schema": json.dumps({"type": "ffi.Function", "args": types})}


def by_name(returns, *parameters):
    """As later ones do."""
    named = {"return": [{"type": returns}], "params": [{"type": name} for name in parameters]}
    return {"type_schema": json.dumps({"type": "ffi.Function", "named_args": named})}


class TestReading:
    @pytest.mark.parametrize("write", [in_one_list, by_name])
    def test_a_function(self, write):
        signature = read_signature(write("None", "DLTensor*", "int"))
        assert signature == Signature(("DLTensor*", "int"), "None")
        assert str(signature) == "(DLTensor*, int) -> None"

    @pytest.mark.parametrize(
        "found",
        [
            None,
            {},
            {"type_schema": "no json"},
            {"type_schema": '{"type": "ffi.Function"}'},
            {"type_schema": '{"args": [{}]}'},
            {"type_schema": '{"named_args": {"params": []}}'},
        ],
    )
    def test_what_says_nothing(self, found):
        assert read_signature(found) is None


def test_returning_nothing(definition, make_solution):
    signature = RETURNS._replace(returns="None")
    solution = make_solution(destination_passing_style=False)
    with pytest.raises(BuildError, match="returns nothing, but must return out"):
        style_of(signature, definition, solution)
    with pytest.raises(BuildError, match="returns nothing"):
        style_of(signature, definition, make_solution())
