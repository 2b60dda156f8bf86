"""Settings by definition: what the registries of apply and tracing have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Optional, TypeVar

from flashinfer_bench._lazy import old_parameters
from flashinfer_bench.errors import ConfigError, DuplicateNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

Config = TypeVar("Config")


class ConfigRegistry(Generic[Config]):
    """The settings of definitions.

    Parameters
    ----------
    default : settings, optional
        For definitions without their own settings.
    per_definition : mapping of str to settings, optional
        By name of the definition.

    Raises
    ------
    ConfigError
        If something else is given.

    Attributes
    ----------
    kind : type
        Of the settings.
    wanted : str
        What people call it in an error: ``"a TracingConfig"``.
    purpose : str
        What the settings are for: ``"tracing"``.
    """

    kind: ClassVar[type]
    wanted: ClassVar[str]
    purpose: ClassVar[str]

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
        """A copy of the settings of single definitions."""
        return dict(self._own)

    @classmethod
    def checked(cls, what: str, config: Any) -> Any:
        """Return settings that are of the right kind.

        Raises
        ------
        ConfigError
            If they are something else; it names `what`.
        """
        if not isinstance(config, cls.kind):
            raise ConfigError(f"{what}: give {cls.wanted}, not {type(config).__name__}")
        return config

    @old_parameters
    def register(self, name: str, config: Config, override: bool = False) -> Self:
        """Give one definition its own settings.

        Parameters
        ----------
        name : str
            The definition; it need not exist.
        config
            Its settings.
        override : bool
            Whether earlier settings may be replaced.

        Returns
        -------
        ConfigRegistry
            Itself.

        Raises
        ------
        ConfigError
            If `config` is something else.
        DuplicateNameError
            If there are other settings already and `override` is not set.
        """
        return self.register_many({name: config}, override=override)

    def register_many(self, configs: Mapping[str, Config], override: bool = False) -> Self:
        """Give several definitions their own settings: all of them, or none if one is refused.

        Raises
        ------
        ConfigError, DuplicateNameError
            As of `register`.
        """
        for name, config in configs.items():
            if not (isinstance(name, str) and name):  # type: ignore[redundant-expr]
                raise ConfigError(f"{name!r} is not a definition name")
            self.checked(repr(name), config)
            if not override and self._own.get(name, config) != config:
                raise DuplicateNameError(
                    f"definition '{name}' already has other {self.purpose} settings",
                    hint="pass override=True to replace them",
                )
        self._own = {**self._own, **configs}  # readers of the old mapping are not disturbed
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return bool((self.default, self._own) == (other.default, other._own))

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return f"{type(self).__name__}(default={self.default!r}, per_definition={self._own!r})"
