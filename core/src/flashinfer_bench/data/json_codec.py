"""Conversion of records to and from JSON text and files.

Fields that are None are not written, except where None has a meaning: the shape of a scalar, the
missing run of a workload trace. Every reading failure is a `DataError` with file, line and field.
"""

from __future__ import annotations

import codecs
import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union

from pydantic import BaseModel, ValidationError

from flashinfer_bench._lazy import old_parameters
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.storage import append_lines, replace_file
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic_core import ErrorDetails

    from flashinfer_bench.data.base import SchemaModel

Model = TypeVar("Model", bound="SchemaModel")
PathLike = Union[str, Path]
_MAX_SHOWN = 80
_TO_WRITE = {
    "op_type": "; write the family of the computation, such as 'gemm' (any name is allowed)"
}


def to_json(obj: BaseModel, indent: int | None = 2) -> str:
    """Return a record as JSON text.

    Parameters
    ----------
    obj : SchemaModel
        The record.
    indent : int or None
        Indentation in columns; None for a single line.
    """
    keep_none = isinstance(obj, Trace) and obj.is_workload_trace()
    return obj.model_dump_json(indent=indent, exclude_none=not keep_none)


@old_parameters
def from_json(text: str | bytes, cls: type[Model]) -> Model:
    """Return a record from JSON text.

    Parameters
    ----------
    text : str or bytes
        The text.
    cls : type
        Class of the record.

    Raises
    ------
    DataError
        If `text` is not JSON, or not a valid record.
    """
    return decode(cls, text)


def dataclass_to_dict(obj: BaseModel) -> dict[str, Any]:
    """Return a record as plain Python data; old name of `model_dump`."""
    return obj.model_dump(mode="json")


def dict_to_dataclass(data: Any, cls: type[Model]) -> Model:
    """Return a record from plain Python data; the inverse of `dataclass_to_dict`.

    Raises
    ------
    DataError
        If it is not a valid record.
    """
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise _to_data_error(error, data) from error


def decode(
    cls: type[Model], text: str | bytes, *, path: Path | None = None, line: int | None = None
) -> Model:
    """Return a record from JSON text, with its place in errors.

    Parameters
    ----------
    cls : type
        Class of the record.
    text : str or bytes
        One JSON document.
    path : Path, optional
        Its file.
    line : int, optional
        Its line, in a file with one record per line.

    Raises
    ------
    DataError
        If `text` is not JSON, or not a valid record.
    """
    if isinstance(text, bytes):
        text = text.removeprefix(codecs.BOM_UTF8)  # some editors on Windows put it there
    try:
        return cls.model_validate_json(text)
    except ValidationError as error:
        data = parse_json(text, path=path, line=line)
        raise _to_data_error(error, data, path=path, line=line) from error
    except RecursionError as error:
        raise DataError("not valid: nested too deeply", path=path, line=line) from error


def parse_json(text: str | bytes, *, path: Path | None = None, line: int | None = None) -> Any:
    """Return decoded JSON.

    Raises
    ------
    DataError
        If `text` is not JSON; with the place of the mistake.
    """
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text)
    except json.JSONDecodeError as error:
        at = line if line is not None else error.lineno
        problem = f"not valid JSON: {error.msg} at column {error.colno}"
        raise DataError(problem, path=path, line=at) from error
    except UnicodeDecodeError as error:
        problem = f"not valid JSON: byte {error.start} is not UTF-8"
        raise DataError(problem, path=path, line=line) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON: {error}", path=path, line=line) from error


def save_json_file(obj: BaseModel, path: PathLike) -> None:
    """Write one record as an indented JSON file, atomically.

    Raises
    ------
    StorageError
        If writing fails; an existing file is then unchanged.
    """
    replace_file(Path(path), (to_json(obj) + "\n").encode())


def load_json_file(cls: type[Model] | PathLike, path: PathLike | type[Model]) -> Model:
    """Read one record.

    Parameters
    ----------
    cls : type
        Class of the record. The old argument order ``(path, cls)`` is accepted.
    path : str or Path
        The file.

    Raises
    ------
    DataError
        If the file is not JSON, or not a valid record.
    OSError
        If it cannot be read.
    """
    model, file = _in_order(cls, path)
    return decode(model, file.read_bytes(), path=file)


@old_parameters
def save_jsonl_file(objs: Iterable[BaseModel], path: PathLike) -> None:
    """Write records to a JSONL file, one per line, atomically.

    Raises
    ------
    StorageError
        If writing fails; an existing file is then unchanged.
    """
    replace_file(Path(path), b"".join(_line(obj) for obj in objs))


def load_jsonl_file(cls: type[Model] | PathLike, path: PathLike | type[Model]) -> list[Model]:
    """Read all records of a JSONL file.

    Parameters
    ----------
    cls : type
        Class of the records. The old argument order ``(path, cls)`` is accepted.
    path : str or Path
        The file: one record per line, or a single record over several lines.

    Raises
    ------
    DataError
        If a line is not JSON, or not a valid record.
    OSError
        If the file cannot be read.
    """
    model, file = _in_order(cls, path)
    return [decode(model, text, path=file, line=line) for line, text in read_records(file)]


def append_jsonl_file(objs: Iterable[BaseModel], path: PathLike) -> None:
    """Append records to a JSONL file; other processes may append at the same time.

    Raises
    ------
    StorageError
        If writing fails; the file is then unchanged.
    """
    append_lines(Path(path), [_line(obj) for obj in objs])


def append_jsonl_lines(path: PathLike, objs: Iterable[BaseModel]) -> None:
    """Append records; `append_jsonl_file` with its old name and argument order."""
    append_jsonl_file(objs, path)


def append_jsonl_line(path: PathLike, obj: BaseModel) -> None:
    """Append one record; `append_jsonl_file` with its old name and argument order."""
    append_jsonl_file([obj], path)


def _line(obj: BaseModel) -> bytes:
    return (to_json(obj, indent=None) + "\n").encode()


def _in_order(
    cls: type[Model] | PathLike, path: PathLike | type[Model]
) -> tuple[type[Model], Path]:
    if isinstance(cls, type) and not isinstance(path, type):
        return cls, Path(path)
    if isinstance(path, type) and not isinstance(cls, type):
        return path, Path(cls)
    raise TypeError("expected one class and one path")


# ----------------------------------------------------------------- from pydantic's errors to ours


def _to_data_error(
    error: ValidationError, data: Any, *, path: Path | None = None, line: int | None = None
) -> DataError:
    """Return an error for the first problem that pydantic found; it names further fields.

    `data` is the decoded record, which distinguishes fields from pydantic's labels.
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


def _field_path(location: Sequence[int | str], data: Any) -> str:
    """Return the dotted path of a field.

    Pydantic's locations also contain labels, such as the tag of a union; they are left out because
    the record has no such keys.
    """
    parts: list[str] = []
    current = data
    for index, part in enumerate(location):
        try:
            current = current[part]
        except (LookupError, TypeError):
            is_key = isinstance(current, dict) and part != "[key]"
            if not is_key or index < len(location) - 1:
                continue
        parts.append(str(part))
    return ".".join(parts)


def _field(detail: ErrorDetails, data: Any) -> str:
    field = _field_path(detail["loc"], data)
    context = detail.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, DataError) and cause.field:
        return f"{field}.{cause.field}" if field else cause.field
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return f"{field}.{context['discriminator'].strip(chr(39))}"
    return field


def _message(detail: ErrorDetails) -> str:
    """Return what is wrong with a field: the rule, the value and the nearest allowed name."""
    context = detail.get("ctx", {})
    cause, value = context.get("error"), context.get("tag", detail["input"])
    if isinstance(cause, DataError):
        return cause.message
    if detail["type"] in ("missing", "union_tag_not_found"):
        return "this field is missing" + _TO_WRITE.get(str(detail["loc"][-1]), "")
    allowed = context.get("expected_tags", context.get("expected", "")).replace(" or ", ", ")
    text = re.sub(r"^\w+ should ", "must ", detail["msg"]).removeprefix("Value error, ")
    text = f"must be one of {allowed}" if allowed else re.sub("a valid dict.*", "an object", text)
    if detail["type"] in ("value_error", "json_invalid") or isinstance(value, (dict, list)):
        return text
    shown = repr(value)
    text += f", not {shown if len(shown) <= _MAX_SHOWN else shown[: _MAX_SHOWN - 1] + '…'}"
    near = get_close_matches(str(value), allowed.split("'")[1::2], n=1)
    return f"{text}; did you mean '{near[0]}'?" if near else text
