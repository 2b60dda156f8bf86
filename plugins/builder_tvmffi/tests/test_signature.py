"""The rules for calling conventions, without a compiler."""

from __future__ import annotations

import json

import pytest

from fib_builder_tvmffi.signature import Signature, choose_style, read_signature
from flashinfer_bench.errors import BuildError

RETURNS = Signature(("DLTensor*", "DLTensor*", "float"), "ffi.Tensor")
WRITES = Signature(("DLTensor*", "DLTensor*", "float", "DLTensor*"), "None")


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

    @pytest.mark.parametrize("write", [in_one_list, by_name])
    def test_one_without_parameters(self, write):
        assert read_signature(write("float")) == Signature((), "float")

    @pytest.mark.parametrize(
        "found",
        [
            None,
            {},
            {"type_schema": None},
            {"type_schema": "no json"},
            {"type_schema": '{"type": "ffi.Function"}'},
            {"type_schema": '{"args": []}'},
            {"type_schema": '{"args": [{}]}'},
            {"type_schema": "[]"},
            {"type_schema": '{"named_args": {"params": []}}'},
            {"type_schema": '{"named_args": []}'},
        ],
    )
    def test_what_says_nothing(self, found):
        assert read_signature(found) is None


class TestChoosing:
    @pytest.mark.parametrize("stated", [True, False])
    @pytest.mark.parametrize("signature", [None, RETURNS, WRITES])
    def test_what_is_stated_holds(self, definition, make_solution, stated, signature):
        solution = make_solution(destination_passing_style=stated)
        if signature in (None, WRITES if stated else RETURNS):
            assert choose_style(signature, definition, solution) is stated
        else:
            with pytest.raises(BuildError, match="set destination_passing_style to"):
                choose_style(signature, definition, solution)

    @pytest.mark.parametrize(
        ("signature", "style"), [(None, True), (WRITES, True), (RETURNS, False)]
    )
    def test_what_is_not(self, definition, make_solution, signature, style):
        assert choose_style(signature, definition, make_solution()) is style

    def test_a_destination_passing_function_may_return_a_status(self, definition, make_solution):
        signature = WRITES._replace(returns="int")
        assert choose_style(signature, definition, make_solution())

    def test_returning_nothing(self, definition, make_solution):
        signature = RETURNS._replace(returns="None")
        solution = make_solution(destination_passing_style=False)
        with pytest.raises(BuildError, match="returns nothing, but is to return out"):
            choose_style(signature, definition, solution)
        with pytest.raises(BuildError, match="takes 3 arguments, but a destination-passing"):
            choose_style(signature, definition, make_solution())
