"""HTML and SVG elements from Python values; everything else is escaped.

Names and logs in a dataset are untrusted. A string can only get into the page as text or as the
value of an attribute, because `element` escapes it; nothing else makes `Markup`.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from collections.abc import Iterable

_VOID = frozenset({"meta"})
# Controls other than tab and line breaks, and surrogates: not allowed in HTML.
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# Marks that reorder the text around them; written as code points, as in the page's scripts.
_TURNING = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Markup(str):
    """Text that is already HTML; only this module makes it."""

    __slots__ = ()


Child = Union[str, int, float, Markup, None]


def escape(text: str) -> Markup:
    """Return `text` so that a browser shows it and never interprets it."""
    text = _TURNING.sub(lambda mark: f"\u27e8{ord(mark[0]):x}\u27e9", text)
    return Markup(html.escape(_NOT_TEXT.sub("\ufffd", text), quote=True))


def element(tag: str, *children: Child, **attributes: Union[str, int, float, bool, None]) -> Markup:
    """Return one element.

    Parameters
    ----------
    tag : str
        Name of the element.
    *children
        Content: `Markup` as it is, strings escaped, numbers written out, None left out.
    **attributes
        A trailing underscore is dropped and others become hyphens (``class_``, ``data_tip``). True
        gives an attribute without a value; False and None omit it; floats get at most two decimals.

    Returns
    -------
    Markup
        The element and all its content.
    """
    opening = f"<{tag}{''.join(_attribute(name, value) for name, value in attributes.items())}>"
    if tag in _VOID:
        return Markup(opening)
    return Markup(f"{opening}{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Markup:
    """Concatenate children without an element around them."""
    return Markup("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    return child if isinstance(child, Markup) else escape(_text(child))


def _attribute(name: str, value: Union[str, int, float, bool, None]) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(_text(value))}"'


def _text(value: Union[str, int, float]) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
