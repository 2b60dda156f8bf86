"""What is read of a definition, and which calls are none of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fib_tests_tracing import DECODE, GEMM, SCALE, decode_inputs, definition, gemm_inputs, tensor

from flashinfer_bench.tracing.layout import Layout, OtherCallError, scalar_of


def refusal(layout: Layout, args: Any) -> str:
    with pytest.raises(OtherCallError) as caught:
        layout.read(args)
    return caught.value.reason


def test_axes_in_the_order_of_the_definition() -> None:
    axes, scalars = Layout(DECODE).read(decode_inputs([2, 3], pages=9))
    assert list(axes.items()) == [
        ("batch_size", 2),
        ("num_pages", 9),
        ("len_indptr", 3),
        ("num_kv_indices", 5),
    ]
    assert scalars == {"sm_scale": 0.5}


def test_what_constraints_say() -> None:
    layout = Layout(DECODE)
    assert layout.free_axes == ("batch_size", "num_pages", "num_kv_indices")
    assert layout.totals == {"kv_indptr": "num_kv_indices"}
    assert Layout(GEMM).free_axes == ("M",)


@pytest.mark.parametrize(
    ("constraint", "free"),
    [
        ("b == a + 1", ("a",)),
        ("a == b - 1", ("a",)),
        ("a + 1 == b", ("a",)),
        ("a == b", ("a",)),
        ("a <= b", ("a", "b")),
        ("a == b * 2", ("a", "b")),
        ("a == b == 2", ("a", "b")),
        ("a == other", ("a", "b")),
        ("a == 2 and b == 3", ("a", "b")),
    ],
)
def test_axes_that_others_decide(constraint: str, free: tuple[str, ...]) -> None:
    made = definition("d", {"x": tensor("a", "b")}, {}, (constraint,))
    assert Layout(made).free_axes == free


@pytest.mark.parametrize(
    ("constraint", "totals"),
    [
        ("n == p[-1].item()", {"p": "n"}),
        ("p[-1].item() == n", {"p": "n"}),
        ("n == p[-1]", {"p": "n"}),
        ("n == p[0].item()", {}),
        ("n <= p[-1].item()", {}),
        ("m == p[-1].item()", {}),
        ("n == max(p)[-1].item()", {}),
    ],
)
def test_axes_that_are_totals(constraint: str, totals: dict[str, str]) -> None:
    inputs = {"x": tensor("n"), "p": tensor("len_p", dtype="int32")}
    assert Layout(definition("d", inputs, {}, (constraint,))).totals == totals


def test_calls_of_something_else() -> None:
    layout = Layout(GEMM)
    a, b = gemm_inputs()
    assert refusal(layout, (a,)) == "number of arguments"
    assert refusal(layout, (a, None)) == "not a tensor"
    assert refusal(layout, (a, b.float())) == "dtype"
    assert refusal(layout, (a[0], b)) == "rank"
    assert refusal(layout, (a, b[:3])) == "constant axis"
    square = Layout(definition("s", {"x": tensor("n", "n")}, {}))
    assert refusal(square, (torch.empty(2, 3, dtype=torch.float16),)) == "axes disagree"
    args = decode_inputs([1, 1])
    assert refusal(Layout(DECODE), (args[0][:1], *args[1:])) == "constraint"
    assert refusal(Layout(DECODE), (*args[:5], None)) == "scalar"


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (1, float, 1.0),
        (True, bool, True),
        (2.0, int, 2),
        (np.float32(0.5), float, 0.5),
        (torch.tensor(3), int, 3),
        (torch.tensor([0.25]), float, 0.25),
    ],
)
def test_scalars(value: Any, kind: type, found: Any) -> None:
    scalar = scalar_of(value, kind)
    assert scalar == found
    assert type(scalar) is kind


@pytest.mark.parametrize(
    ("value", "kind"), [(1.5, int), ("1", int), (None, float), ([1], int), (torch.ones(2), float)]
)
def test_what_is_no_such_scalar(value: Any, kind: type) -> None:
    with pytest.raises(OtherCallError, match="scalar"):
        scalar_of(value, kind)


def test_literal_sizes_and_empty_shapes() -> None:
    made = definition("d", {"x": tensor("n"), "s": SCALE}, {}).model_dump()
    made["inputs"]["x"]["shape"] = ["n", "3"]
    layout = Layout(type(GEMM).model_validate(made))
    assert layout.read((torch.empty(2, 3, dtype=torch.float16), 1))[0] == {"n": 2}
    assert refusal(layout, (torch.empty(2, 4, dtype=torch.float16), 1)) == "constant axis"
