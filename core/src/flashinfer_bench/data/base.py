"""Common base of all models of the format."""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from flashinfer_bench._lazy import old_attribute

if TYPE_CHECKING:
    from typing_extensions import Self

NonEmptyStr = Annotated[str, Field(min_length=1)]
"""A string of at least one character."""


def words_for_numbers(value: Any) -> Any:
    """Replace non-finite numbers, at any depth, by the strings that stand for them in JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: words_for_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [words_for_numbers(item) for item in value]
    return value


JsonWords = PlainSerializer(words_for_numbers, when_used="json")
"""Marks a field whose numbers may be infinite or NaN."""

_WORDS = ("nan", "infinity", "inf", "-infinity", "-inf")


def number_for_word(value: Any) -> Any:
    """Turn the string of a non-finite number, in any capitalisation, into that number."""
    return float(value) if isinstance(value, str) and value.lower() in _WORDS else value


def null_as(empty: Any) -> BeforeValidator:
    """Mark a field that older releases and other programs may write as null."""
    return BeforeValidator(lambda value: empty if value is None else value)


NullIsEmpty = null_as([])
"""Marks a list that may be null."""

Size = Annotated[int, Field(strict=True, ge=0)]
"""A number of elements: an integer (not ``true`` or ``"4"``), at least 0."""


class NameEnum(str, Enum):
    """An enumeration of names; a member equals its name as a string, and prints as that."""

    __str__ = str.__str__


class SchemaModel(BaseModel):
    """Base of every record.

    Unknown keys are ignored, so that files of later releases, or of tools with their own additions,
    still load. Unknown keys of an evaluation, a build specification and a variable axis are kept,
    because older releases had some there: they become attributes, and are written back. Non-finite
    numbers are written as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, because JSON
    cannot express them.

    `model_validate` and `model_validate_json` first try the record as it is. Only if that fails,
    they rewrite it from the spellings of older releases (`upgrade`) and try again, so that current
    records are read at full speed. Some fields accept further spellings, as documented there.

    Releases differ in: ``type`` for ``op_type``, axes without ``type``, sizes in shapes
    (2025-07 to 2025-09); capitalised languages, ``build_steps``, an entry point without its file
    (2025-07); ``log_file``, ``error``, ``environment.device``, status ``INCORRECT``, workloads
    without uuid, ``"solution": ""`` and ``"evaluation": {}`` (until 2025-10); nulls instead of
    defaults.
    """

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="strings")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return old_attribute(self, name)

    @staticmethod
    def upgrade(data: Any) -> Any:
        """Return a copy of a decoded record of an older release in the current spelling.

        Only renamed fields and fields with defaults are filled in. Other missing fields stay
        missing, so that validation reports them.
        """
        return data

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Return a model of Python objects, in the spelling of any release."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError:
            upgraded = cls.upgrade(obj)
            if upgraded == obj:
                raise
        return super().model_validate(upgraded, **options)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Return a model of JSON text, in the spelling of any release."""
        try:
            return super().model_validate_json(json_data, **options)
        except ValidationError:
            try:
                decoded = json.loads(json_data)
            except (ValueError, RecursionError):
                decoded = None
            upgraded = cls.upgrade(decoded)
            if upgraded == decoded:
                raise
        return super().model_validate(upgraded, **options)
