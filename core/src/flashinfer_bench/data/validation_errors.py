"""From pydantic's errors to ours: one message with file, line and field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_MAX_SHOWN = 80


def to_data_error(
    error: ValidationError,
    data: Any,
    *,
    path: Optional[Path] = None,
    line: Optional[int] = None,
) -> DataError:
    """Turn a failed validation into a `DataError`.

    Parameters
    ----------
    error : ValidationError
        What pydantic found.
    data : Any
        The decoded record, which tells real fields from pydantic's own labels.
    path : Path, optional
        File of the record.
    line : int, optional
        Line of the record in it.

    Returns
    -------
    DataError
        About the first problem; further ones are counted and named.
    """
    details = error.errors(include_url=False)
    first = details[0]
    message = _message(first)
    field = _field(first, data)
    others = list(dict.fromkeys(_field(detail, data) for detail in details[1:]))
    others = [other for other in others if other != field]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        message += f" (also wrong: {', '.join(others[:3])}{more})"
    return DataError(message, path=path, line=line, field=field or None)


def field_path(location: Sequence[int | str], data: Any) -> str:
    """Return the dotted path of a field.

    Pydantic puts labels of its own between the names, such as the tag of a union; they are left
    out because the record has no such key.

    Parameters
    ----------
    location : sequence of int or str
        Pydantic's location.
    data : Any
        The decoded record.
    """
    parts: list[str] = []
    current = data
    for index, part in enumerate(location):
        if _has(current, part):
            current = current[part]
        elif not _is_missing_key(current, part, is_last=index == len(location) - 1):
            continue
        parts.append(str(part))
    return ".".join(parts)


def _has(container: Any, part: int | str) -> bool:
    if isinstance(container, dict):
        return part in container
    return isinstance(container, list) and isinstance(part, int) and part < len(container)


def _is_missing_key(container: Any, part: int | str, *, is_last: bool) -> bool:
    return is_last and isinstance(container, dict) and part != "[key]"


def _field(detail: ErrorDetails, data: Any) -> str:
    field = field_path(detail["loc"], data)
    context = detail.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, DataError) and cause.field:
        return f"{field}.{cause.field}" if field else cause.field
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return f"{field}.{context['discriminator'].strip(chr(39))}"
    return field


def _message(detail: ErrorDetails) -> str:
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, DataError):
        return cause.message
    if detail["type"] == "missing":
        return "this field is missing"
    if detail["type"] == "union_tag_invalid":
        return f"must be one of {detail['ctx']['expected_tags']}, not '{detail['ctx']['tag']}'"
    if detail["type"] == "union_tag_not_found":
        return "this field is missing"
    text = detail["msg"].removeprefix("Value error, ")
    value = detail["input"]
    if detail["type"] in ("value_error", "json_invalid") or isinstance(value, (dict, list)):
        return text
    return f"{text}, not {_shown(value)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
