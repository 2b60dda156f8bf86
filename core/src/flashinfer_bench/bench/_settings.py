"""What all classes of settings share: strict fields, and errors that name the field."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Optional

from pydantic import BaseModel, ConfigDict, ValidationError

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails
    from typing_extensions import Self


class SettingsModel(BaseModel):
    """A model that knows no other keys than its fields and raises `ConfigError`."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    if not TYPE_CHECKING:  # type checkers see the typed signature that pydantic derives

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _config_error(type(self), error) from error

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                super().__setattr__(name, value)
            except ValidationError as error:
                raise _config_error(type(self), error) from error

    @classmethod
    def checked(cls, values: dict[str, Any], source: str) -> Self:
        """Build from a mapping; an error also names `source`, where the values come from."""
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error.message}", hint=error.hint) from error


def _config_error(cls: type[BaseModel], error: ValidationError) -> ConfigError:
    details = error.errors(include_url=False)
    lines = [f"{_dotted(item)}: {_reason(item)}" for item in details]
    hints = [hint for item in details if (hint := _hint(cls, item))]
    return ConfigError("; ".join(lines), hint=hints[0] if hints else None)


def _dotted(item: ErrorDetails) -> str:
    return ".".join(str(part) for part in item["loc"])


def _nested(item: ErrorDetails) -> Optional[ConfigError]:
    """Return the error of a model inside the model, which says best what is wrong."""
    inner = item.get("ctx", {}).get("error")
    return inner if isinstance(inner, ConfigError) else None


def _reason(item: ErrorDetails) -> str:
    if (inner := _nested(item)) is not None:
        return inner.message
    if item["type"] == "extra_forbidden":
        return "there is no such setting"
    return f"{item['msg'].removeprefix('Value error, ')} (got {item['input']!r})"


def _hint(cls: type[BaseModel], item: ErrorDetails) -> Optional[str]:
    if (inner := _nested(item)) is not None:
        return inner.hint
    if item["type"] != "extra_forbidden":
        return None
    near = get_close_matches(str(item["loc"][-1]), cls.model_fields, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(cls.model_fields)}"


def read_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    dict
        What it holds; empty for an empty file.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or holds something else.
    """
    import yaml  # ~15 ms that only a run pays

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the settings file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(
            f"{path} must hold a mapping of settings, not {type(content).__name__}",
            hint="write one 'name: value' per line, for example 'iterations: 20'",
        )
    return content
