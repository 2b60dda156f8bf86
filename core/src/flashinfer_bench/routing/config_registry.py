"""Settings by definition: the common base of the registries of apply and tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Optional, TypeVar

from flashinfer_bench._lazy import old_parameters
from flashinfer_bench.errors import ConfigError, DuplicateNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

Config = TypeVar("Config")


class ConfigRegistry(Generic[Config]):
    """Settings by definition, with a default.

    Parameters
    ----------
    default : settings, optional
        For definitions without their own settings.
    per_definition : mapping of str to settings, optional
        By definition name.

    Raises
    ------
    ConfigError
        If a value has the wrong type.

    Attributes
    ----------
    kind : type
        Type of the settings.
    """

    kind: ClassVar[type]

    def __init__(
        self,
        default: Optional[Config] = None,
        per_definition: Optional[Mapping[str, Config]] = None,
    ) -> None:
        self.default: Any = None if default is None else self.checked("default", default)
        self._own: dict[str, Config] = {}
        self.register_many(per_definition or {})

    @property
    def per_definition(self) -> dict[str, Config]:
        """A copy of the settings of individual definitions."""
        return dict(self._own)

    @classmethod
    def checked(cls, what: str, config: Any) -> Any:
        """Return the settings if they have the right type.

        Raises
        ------
        ConfigError
            If they do not; the message names `what`.
        """
        if not isinstance(config, cls.kind):
            kind, given = cls.kind.__name__, type(config).__name__
            raise ConfigError(f"{what}: give settings of type {kind}, not {given}")
        return config

    @classmethod
    def of(cls, what: str, config: Any) -> Self:
        """Return the registry that is given, or one of settings that apply to all definitions.

        Raises
        ------
        ConfigError
            If it is neither; the message names `what`.
        """
        return config if isinstance(config, cls) else cls(cls.checked(what, config))

    @old_parameters
    def register(self, name: str, config: Config, override: bool = False) -> Self:
        """Set the settings of one definition.

        Parameters
        ----------
        name : str
            Name of the definition, which need not exist.
        config
            Its settings.
        override : bool
            Whether to replace existing settings.

        Returns
        -------
        ConfigRegistry
            The registry itself.

        Raises
        ------
        ConfigError
            If `config` has the wrong type.
        DuplicateNameError
            If there are different settings already and `override` is not set.
        """
        return self.register_many({name: config}, override=override)

    def register_many(self, configs: Mapping[str, Config], override: bool = False) -> Self:
        """Set the settings of several definitions: all, or none if one is rejected.

        Raises
        ------
        ConfigError, DuplicateNameError
            As for `register`.
        """
        for name, config in configs.items():
            if not (isinstance(name, str) and name):  # type: ignore[redundant-expr]
                raise ConfigError(f"{name!r} is not a definition name")
            self.checked(repr(name), config)
            if not override and self._own.get(name, config) != config:
                raise DuplicateNameError(
                    f"definition '{name}' already has another {self.kind.__name__}",
                    hint="pass override=True to replace them",
                )
        self._own = {**self._own, **configs}  # replaced as a whole: readers keep the old mapping
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return bool((self.default, self._own) == (other.default, other._own))

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"{type(self).__name__}(default={self.default!r}, per_definition={self._own!r})"
