"""How a function returns its outputs, by its annotation."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from flashinfer_bench.routing.binding import Returns, returns_of  # noqa: E402


class Pair(NamedTuple):
    """What a library may return."""

    out: object
    lse: object


def annotated(text):
    def function():
        pass

    function.__annotations__["return"] = text
    return function


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (None, Returns("none", 0)),
        (torch.Tensor, Returns("one", 1)),
        ("unknown.Tensor", Returns("one", 1)),
        ("tuple[unknown.Tensor, unknown.Tensor]", Returns("tuple", 2)),
        ("Tuple[Tensor, ...]", Returns("tuple")),
        (tuple[torch.Tensor, torch.Tensor], Returns("tuple", 2)),
        (tuple[torch.Tensor, ...], Returns("tuple")),
        (tuple, Returns("tuple")),
        ("List[Tensor]", Returns("list")),
        (dict[str, torch.Tensor], Returns("dict")),
        ("Dict[str, Tensor]", Returns("dict")),
        ("'Tensor'", Returns("one", 1)),
        ("Union[Tensor, tuple[Tensor, Tensor]]", Returns()),
        ("Tensor | tuple[Tensor, Tensor]", Returns()),
        (torch.Tensor | None, Returns()),
        ("no annotation at all", Returns()),
        ("Pair", Returns("tuple", 2, Pair)),
        (Pair, Returns("tuple", 2, Pair)),
    ],
    ids=str,
)
def test_annotations(annotation, expected):
    assert returns_of(annotation, annotated(annotation)) == expected


@given(st.text(max_size=30))
def test_any_text_is_an_annotation(text):
    assert returns_of(f"{text}[", None) == Returns()
