"""What all models of the format have in common."""

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
    """Replace the numbers that JSON does not know, at any depth, by the words for them."""
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
    """Turn a word for a number that JSON does not know, however capitalised, into that number."""
    return float(value) if isinstance(value, str) and value.lower() in _WORDS else value


NullIsEmpty = BeforeValidator(lambda value: [] if value is None else value)
"""Marks a list in whose place older releases, and others, write null."""

Size = Annotated[int, Field(strict=True, ge=0)]
"""A number of elements: a real integer (no ``true``, no ``"4"``), at least 0."""


def without_empty(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a copy with None in place of what older releases wrote for nothing in some fields."""
    return {**data, **{key: None for key in names if data.get(key) in ({}, "")}}


class NameEnum(str, Enum):
    """A list of known names; a member equals its name as a string, and prints as it."""

    __str__ = str.__str__

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


class SchemaModel(BaseModel):
    """Base of every record.

    Keys that the format does not know are ignored, so that a file written by a later release, or
    by a tool with its own additions, still loads. Those of an evaluation, a build specification
    and a variable axis, where older releases had some, are kept: attributes of the record that had
    them, which are written back. Non-finite numbers are written as the strings
    ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, because JSON has no other word for them.

    `model_validate` and `model_validate_json` first try the record as it is. Only where that fails
    they rewrite it from the spellings of older releases (`upgrade`) and try once more: records
    of today pay nothing for those of yesterday. What the fields of a model read besides, they say.

    Releases differ in: ``type`` for ``op_type``, axes without ``type``, sizes in shapes
    (2025-07 to 2025-09); capitalised languages, ``build_steps``, an entry point without its file
    (2025-07); ``log_file``, ``error``, ``environment.device``, status ``INCORRECT``, workloads
    without uuid, ``"solution": ""`` and ``"evaluation": {}`` (till 2025-10); nulls in place of
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
        """Rewrite a decoded record of an older release in today's spelling, as another record.

        Only what was renamed, or has a default, is filled in. Content that is missing stays
        missing, so that validation refuses it by name.
        """
        return data

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Make a model from Python objects, in the spelling of any release."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError:
            upgraded = cls.upgrade(obj)
            if upgraded == obj:
                raise
        return super().model_validate(upgraded, **options)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Make a model from JSON text, in the spelling of any release."""
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
