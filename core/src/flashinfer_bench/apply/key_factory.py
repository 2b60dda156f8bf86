"""Which key builder makes the keys of a definition."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, ClassVar, Optional, cast

from flashinfer_bench.apply.keys import ApplyKeyBuilder, AxesOnlyKeyBuilder
from flashinfer_bench.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Definition
    from flashinfer_bench.plugins import KeyBuilderSpec
    from flashinfer_bench.plugins.registered import Registered

logger = logging.getLogger(__name__)

# A plugin's class may raise anything when it is imported or made: it loses only itself by that.
_ANYTHING = (Exception, SystemExit)


class ApplyKeyFactory:
    """Chooses the key builder for an op type.

    The first of these is taken: what `register` has set in this process; the records of plugins and
    of core, by falling priority; `AxesOnlyKeyBuilder`. A record that cannot be used here, or whose
    class cannot be loaded, is passed over, with a warning for what is broken. Upper and lower case
    of op types are the same.
    """

    _registered: ClassVar[dict[str, type[ApplyKeyBuilder]]] = {}
    _warned: ClassVar[set[str]] = set()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def register(cls, type_name: str, builder_cls: type[ApplyKeyBuilder]) -> None:
        """Take `builder_cls` for an op type, in this process; what was registered is replaced.

        Tables that are in use keep their keys: register before apply is enabled. A plugin that
        shall work in other processes registers a `KeyBuilderSpec` instead.

        Parameters
        ----------
        type_name : str
            The op type.
        builder_cls : type
            A subclass of `ApplyKeyBuilder`, made with the definition.

        Raises
        ------
        ConfigError
            If it is something else.
        """
        if not _is_key_builder(builder_cls):
            raise ConfigError(
                f"{builder_cls!r} cannot make the keys of op type {type_name!r}: "
                "give a subclass of flashinfer_bench.apply.ApplyKeyBuilder"
            )
        with cls._lock:
            cls._registered = {**cls._registered, _plain(type_name): builder_cls}

    @classmethod
    def unregister(cls, type_name: str) -> None:
        """Undo `register`; nothing happens if there is nothing to undo."""
        with cls._lock:
            kept = {
                name: each for name, each in cls._registered.items() if name != _plain(type_name)
            }
            cls._registered = kept

    @classmethod
    def for_type(cls, type_name: str) -> type[ApplyKeyBuilder]:
        """Return the class that makes the keys of an op type."""
        return next(cls._candidates(type_name))[0]

    @classmethod
    def specialize(cls, defn: Definition) -> ApplyKeyBuilder:
        """Return a key builder for a definition.

        Parameters
        ----------
        defn : Definition
            Its op type decides which.

        Returns
        -------
        ApplyKeyBuilder
            Of the first class that can be made with the definition, as `AxesOnlyKeyBuilder` can.
        """
        for candidate, _ in cls._candidates(defn.op_type):
            try:
                return candidate(defn)
            except _ANYTHING as error:
                cls._warn(
                    f"key builder {_path(candidate)} cannot be made for definition "
                    f"{defn.name!r}: {type(error).__name__}: {error}"
                )
        return AxesOnlyKeyBuilder(defn)

    @classmethod
    def identity(cls, type_name: str) -> str:
        """Return a text that is another one if keys of an op type may be made in another way.

        A table that is kept on disk is for one such text: another plugin, or another release of it,
        may make other keys.

        Returns
        -------
        str
            The classes in question and the releases that provide them, in the order of selection.
        """
        found = [f"{_path(each)} {origin}".rstrip() for each, origin in cls._candidates(type_name)]
        return ", ".join(found)

    @classmethod
    def _candidates(cls, type_name: str) -> Iterator[tuple[type[ApplyKeyBuilder], str]]:
        """Yield classes and their origins in the order of selection, `AxesOnlyKeyBuilder` last."""
        registered = cls._registered.get(_plain(type_name))
        if registered is not None:
            yield registered, ""
        for entry in _entries(type_name):
            loaded = cls._load(entry) if entry.availability() else None
            if loaded is not None:
                yield loaded, entry.origin
        yield AxesOnlyKeyBuilder, ""

    @classmethod
    def _load(cls, entry: Registered[KeyBuilderSpec]) -> Optional[type[ApplyKeyBuilder]]:
        try:
            loaded = entry.load()
        except PluginError as error:
            cls._warn(str(error))
            return None
        if _is_key_builder(loaded):
            return cast("type[ApplyKeyBuilder]", loaded)
        cls._warn(
            f"The {entry.label} of {entry.origin} is not used: {entry.spec.factory} is no subclass "
            "of flashinfer_bench.apply.ApplyKeyBuilder"
        )
        return None

    @classmethod
    def _warn(cls, message: str) -> None:
        with cls._lock:
            known = message in cls._warned
            cls._warned.add(message)
        if not known:
            logger.warning("%s", message)


def _entries(op_type: str) -> Iterator[Registered[KeyBuilderSpec]]:
    """Yield the records for an op type, in the order of selection."""
    from flashinfer_bench.plugins import default_catalog

    for entry in default_catalog().key_builders:
        if _plain(op_type) in map(_plain, entry.spec.op_types):
            yield entry


def _is_key_builder(candidate: object) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, ApplyKeyBuilder)


def _path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _plain(op_type: str) -> str:
    return op_type.strip().lower()
