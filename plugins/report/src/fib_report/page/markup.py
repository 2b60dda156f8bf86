"""HTML and SVG elements from Python values; whatever is not an element is escaped.

Names and logs in a dataset are written by strangers. A string can only get into the page as text or
as the value of an attribute, because `element` escapes it; nothing else makes `Markup`.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from collections.abc import Iterable

_VOID = frozenset({"meta"})
# What neither HTML nor a reader can use: controls other than tab and line breaks, and surrogates.
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# Marks that reorder the text around them; spelt out, as the scripts of the page do it.
_TURNING = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Markup(str):
    """Text that is already HTML; made by this module only."""

    __slots__ = ()


Child = Union[str, int, float, Markup, None]


def escape(text: str) -> Markup:
    """Return `text` so that a browser shows it and never interprets it."""
    text = _TURNING.sub(lambda mark: f"\u27e8{ord(mark[0]):x}\u27e9", text)
    return Markup(html.escape(_NOT_TEXT.sub("\ufffd", text), quote=True))


def element(tag: str, *children: Child, **attributes: Union[str, int, float, bool, None]) -> Markup:
    """Make one element.

    Parameters
    ----------
    tag : str
        Its name.
    *children
        Content: `Markup` as it is, strings escaped, numbers written out, None left out.
    **attributes
        A trailing underscore is dropped and others become hyphens (``class_``, ``data_tip``). True
        stands alone; False and None leave the attribute out; floats get two decimals at most.

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
    """Put children one after the other, without an element around them."""
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
