"""Which public names there are, and what parameters they take."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
_PLAIN = (str, int, float, bool, tuple, frozenset, type(None))


def record_names(root: Path) -> dict[str, Any]:
    """Return an entry for each name of ``data/names.txt``."""
    return _record("names.txt")


def record_exports(root: Path) -> dict[str, Any]:
    """Return an entry for each name of ``data/exports.txt``."""
    return _record("exports.txt")


def _record(file: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")  # old spellings warn
    lines = (DATA / file).read_text(encoding="utf-8").splitlines()
    return {name: _entry(name) for name in lines if name and not name.startswith("#")}


def _entry(name: str) -> Any:
    try:
        found = resolve(name)
    except Exception as error:  # noqa: BLE001 - whatever an import raises is the finding
        return f"does not resolve: {type(error).__name__}"
    return describe(found)


class Field:
    """Stands for a field that is not an attribute of its class."""

    def __init__(self, text: str) -> None:
        self.text = text


def resolve(name: str) -> Any:
    """Return what a dotted name stands for."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if count == 1 or not f"{module}.".startswith(f"{error.name}."):
                raise
            continue
        for part in parts[count:]:
            found = _attribute(found, part)
        return found
    raise AssertionError(name)


def _attribute(owner: Any, name: str) -> Any:
    if not inspect.isclass(owner) or issubclass(owner, enum.Enum):
        return getattr(owner, name)
    try:
        return inspect.getattr_static(owner, name)
    except AttributeError:
        pass
    fields = getattr(owner, "model_fields", {})
    if name in fields:
        return Field("field, required" if fields[name].is_required() else "field")
    if any(name in vars(base).get("__annotations__", {}) for base in owner.__mro__):
        return Field("field")
    return getattr(owner, name)


def describe(found: Any) -> str:
    """Return the kind of a thing, with its parameters or its value."""
    if isinstance(found, Field):
        return found.text
    if isinstance(found, (staticmethod, classmethod)):
        return f"{type(found).__name__} {parameters(found.__func__)}"
    if inspect.ismodule(found):
        return f"module {parameters(found)}" if callable(found) else "module"
    if inspect.isclass(found) and issubclass(found, enum.Enum):
        return f"enum {', '.join(f'{one.name}={one.value!r}' for one in found)}"
    if inspect.isclass(found):
        return f"class {parameters(found)}"
    if isinstance(found, enum.Enum):
        return f"member {found.value!r}"
    if callable(found) and type(found).__module__ != "typing":
        return f"function {parameters(found)}"
    if isinstance(found, _PLAIN):
        return f"value {_text(found)}"
    if inspect.ismemberdescriptor(found):
        return "field"
    return "property" if hasattr(found, "__get__") else f"a {type(found).__name__}"


def parameters(found: Any) -> str:
    """Return the parameters of a signature without annotations, such as ``(a, *, b=1)``."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError, NameError):
        return "(?)"
    bare = [
        one.replace(annotation=one.empty, default=_Shown(one.default))
        if one.default is not one.empty
        else one.replace(annotation=one.empty)
        for one in signature.parameters.values()
    ]
    return str(inspect.Signature(bare))


class _Shown:
    """A default value whose text is the same in each process."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return _text(self.value)


def _text(value: Any) -> str:
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return re.sub(r"\b\d+\.\d+\.\d+\b", "<version>", text)[:200]
