"""Which adapters there are, which the user wants, and what each has to say for itself."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench import env
from flashinfer_bench.integration.adapter import Adapter, PatchSpec
from flashinfer_bench.integration.patch_manager import Order
from flashinfer_bench.integration.status import PatchStatus
from flashinfer_bench.integration.targets import version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.integration.status import State
    from flashinfer_bench.plugins import AdapterSpec, Registered

logger = logging.getLogger(__name__)

_ANYTHING = (Exception, SystemExit)


class Selection(NamedTuple):
    """What ``FIB_ADAPTERS`` says.

    Patterns of names of adapters (see `fnmatch`). With any to use, only those; never those to leave
    out, which are written with a ``-`` in front.
    """

    use: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()

    @classmethod
    def from_env(cls) -> Selection:
        """Read ``FIB_ADAPTERS``."""
        words = env.adapters()
        return cls(
            tuple(word for word in words if not word.startswith("-")),
            tuple(word[1:].strip() for word in words if word.startswith("-")),
        )

    def refusal(self, name: str) -> Optional[str]:
        """Return why an adapter is not used; None if it is."""
        for pattern in self.leave:
            if fnmatchcase(name, pattern):
                return f"FIB_ADAPTERS leaves it out (-{pattern})"
        if self.use and not any(fnmatchcase(name, pattern) for pattern in self.use):
            return f"FIB_ADAPTERS uses {', '.join(self.use)} only"
        return None

    def idle(self, names: Sequence[str]) -> list[str]:
        """Return the patterns that are of no adapter there is."""
        return [
            word
            for word in (*self.use, *self.leave)
            if not any(fnmatchcase(name, word) for name in names)
        ]


class Chosen:
    """An adapter of the catalog, made when its library is there.

    Parameters
    ----------
    entry : Registered
        Its record.
    """

    def __init__(self, entry: Registered[AdapterSpec]) -> None:
        self.entry = entry
        self.name = entry.name
        self.paths = tuple(entry.spec.targets)
        self.libraries = tuple(dict.fromkeys(path.partition(".")[0] for path in self.paths))
        self.adapter: Optional[Adapter] = None
        self.problem: Optional[tuple[State, str]] = None
        self._told: set[str] = set()

    def make(self) -> Optional[Adapter]:
        """Return the adapter, made at the first call; None if it cannot be used: see `problem`."""
        if self.adapter is None and self.problem is None:
            answer, probe = self.entry.availability(), self.entry.check
            # The library is there, and its signatures are looked at: a probe that a busy program
            # has kept from answering in time says nothing against it.
            if not answer and not (probe is not None and probe.is_late):
                told = f"{answer.reason} ({answer.remedy})" if answer.remedy else answer.reason
                self.problem = ("mismatch", told)
            else:
                self._construct()
        return self.adapter

    def _construct(self) -> None:
        try:
            made: Any = self.entry.load()()
            if not isinstance(made, Adapter):
                raise TypeError(f"{self.entry.spec.factory} made {made!r}, which is no Adapter")
            self.adapter = made
        except _ANYTHING as error:  # a plugin's code may raise anything, and costs only itself
            self.fail("it cannot be made", error)

    def fail(self, what: str, error: BaseException) -> None:
        """Note that it cannot be used, and tell once: it may be asked again."""
        reason = f"{what}: {type(error).__name__}: {error}".splitlines()[0]
        self.problem = ("failed", reason)
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("adapter '%s' is not used: %s", self.name, reason, exc_info=error)

    def orders(self, *, late: bool = True) -> list[Order]:
        """Return its targets; none if it cannot be used: see `problem`.

        Parameters
        ----------
        late : bool
            Whether to ask for those that are known only once the library is imported, too.
        """
        adapter = self.make()
        if adapter is None:
            return []
        try:
            specs: list[Any] = list(adapter.targets())
            specs += adapter.late_targets() if late else ()
            wrong = [each for each in specs if not isinstance(each, PatchSpec)]
            if wrong:
                raise TypeError(f"its targets have {wrong[0]!r}, which is no PatchSpec")
        except _ANYTHING as error:
            self.fail("it has no targets", error)
            return []
        self.problem = None  # it may have had one while its library was in the making
        return [Order(self.name, spec, adapter.make_wrapper) for spec in specs]

    def statuses(self, state: State, reason: str) -> list[PatchStatus]:
        """Return the same for all targets of its record."""
        return [
            PatchStatus(path, self.name, state, reason, version_of(path.partition(".")[0]))
            for path in self.paths
        ]
