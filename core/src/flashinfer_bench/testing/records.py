"""What holds for a record of any kind, and what the suites for records share."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Optional, Protocol, Union

import pytest

from flashinfer_bench._lazy import import_string
from flashinfer_bench.testing.record_checks import (
    look,
    require_answers,
    require_factory,
    require_light,
    require_pure,
    require_summary,
)
from flashinfer_bench.testing.verdict import fail, in_short, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from flashinfer_bench.plugins import Record
    from flashinfer_bench.testing.record_checks import Step

_KEPT: pytest.StashKey[dict[Hashable, Any]] = pytest.StashKey()


class RecordCase(Protocol):
    """What the cases of all suites for records have."""

    @property
    def record(self) -> Union[Any, str]:
        """The record, or the path of a factory."""

    @property
    def plugin(self) -> Optional[str]:
        """The plugin's module."""


def keep(
    request: pytest.FixtureRequest,
    key: Hashable,
    make: Callable[[], Any],
    owner: Optional[pytest.Session] = None,
) -> Any:
    """Return ``make()``, made once for the test class that is running.

    Parameters
    ----------
    request : pytest.FixtureRequest
        Of a test of that class.
    key : hashable
        All that the result depends on.
    make : callable
        What makes it.
    owner : pytest.Session, optional
        Make it once for the whole session instead.
    """
    node = owner or request.node.getparent(pytest.Class) or request.node
    kept = node.stash.setdefault(_KEPT, {})
    if key not in kept:
        kept[key] = make()
    return kept[key]


def refuse_case(request: pytest.FixtureRequest, wanted: type, found: object = None) -> NoReturn:
    """Fail the running test because its class gives no case, or a wrong one."""
    fail(
        f"{request.cls.__name__} has no fixture 'case' that returns a {wanted.__name__}, "
        f"but {'none' if found is None else type(found).__name__}",
        why="the suite does not know what to check",
        fix=f"define a fixture in the class: def case(self): return {wanted.__name__}(…)",
    )


def factory_path(case: RecordCase) -> str:
    """Return where the code of a case is: ``"package.module:Name"``."""
    return str(getattr(case.record, "factory", case.record))


def spec_of(case: RecordCase) -> Record:
    """Return the record of a case, or skip the test where it has none."""
    if isinstance(case.record, str):
        skip("the case names a factory, not a record")
    record: Record = case.record
    return record


def load_factory(case: RecordCase) -> Any:
    """Return the object that the record names, or skip the test where it cannot be imported."""
    try:
        return import_string(factory_path(case))
    except Exception as error:  # noqa: BLE001 - a plugin's module may raise anything
        skip(
            f"{factory_path(case)} cannot be imported ({in_short(error)}): "
            "see test_the_factory_is_of_the_right_type"
        )


def construct(case: RecordCase, *arguments: Any) -> Any:
    """Return what the factory makes, or skip the test where it raises."""
    factory = load_factory(case)
    try:
        return factory(*arguments)
    except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
        skip(f"the factory raised {in_short(error)}: see test_the_factory_takes_what_it_is_given")


def require_available(case: RecordCase, request: pytest.FixtureRequest) -> None:
    """Skip the test if the record's probe says that its code cannot be used here."""
    record = case.record
    if isinstance(record, str) or record.probe is None:
        return
    from flashinfer_bench.plugins import Catalog

    def ask() -> Any:
        entry = Catalog.of(record, timeout_s=30.0).find(record.kind, record.name)
        return entry.label, entry.availability()

    label, answer = keep(request, ("availability", record.probe), ask)
    if not answer:
        skip(f"{label} cannot be used here: {answer.reason}")


class RecordConformance:
    """Checks for the record of any kind; the suites for records subclass it."""

    kind: ClassVar[str] = ""
    """The kind of the records."""

    case_type: ClassVar[type]
    """What the fixture ``case`` returns."""

    @pytest.fixture(autouse=True)
    def _process_is_restored(self) -> Iterator[None]:
        """Undo what a plugin's code does to this process, so that other tests see only theirs."""
        environment, path = dict(os.environ), list(sys.path)
        yield
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path

    @pytest.fixture
    def case(self, request: pytest.FixtureRequest) -> Any:
        """Return what is to be checked; the author's class has another one in its place."""
        refuse_case(request, self.case_type)

    @pytest.fixture
    def given(self, case: Any, request: pytest.FixtureRequest) -> Any:
        """Return the author's case, if it is of the right type."""
        if not isinstance(case, self.case_type):
            refuse_case(request, self.case_type, case)
        return case

    def libraries(self, given: Any) -> tuple[str, ...]:
        """Return modules that neither plugin nor probe may import, besides the heavy ones."""
        return ()

    @pytest.fixture
    def looked(self, request: pytest.FixtureRequest, given: Any) -> dict[str, Step]:
        """Return what a fresh interpreter found out about plugin and probe."""
        plugin = given.plugin or factory_path(given).partition(":")[0].partition(".")[0]
        probe = getattr(given.record, "probe", None)
        libraries = self.libraries(given)
        found: dict[str, Step] = keep(
            request,
            ("look", plugin, probe, libraries),
            lambda: look(plugin=plugin, probe=probe, libraries=libraries),
            request.session,
        )
        return {**found, "names": {"plugin": plugin, "probe": probe}}

    def test_the_record_says_what_it_is(self, given: Any) -> None:
        """A summary is there, in one line, by which it can be told from others."""
        require_summary(spec_of(given))

    def test_the_factory_is_of_the_right_type(self, given: Any) -> None:
        """The path in the record leads to a class of the kind's base class."""
        require_factory(factory_path(given), self.kind)

    def test_importing_the_plugin_is_light(self, looked: dict[str, Step]) -> None:
        """The module of the entry point imports no heavy library, and changes nothing."""
        require_light(looked["names"]["plugin"], looked["plugin"])

    def test_the_probe_answers(self, given: Any, looked: dict[str, Step]) -> None:
        """The probe answers in time, and a no comes with reason and remedy."""
        _require_probe(given)
        require_answers(looked["names"]["probe"], looked["probe"])

    def test_the_probe_is_pure(self, given: Any, looked: dict[str, Step]) -> None:
        """The probe gives the same answer each time, imports nothing heavy, changes nothing."""
        _require_probe(given)
        require_pure(looked["names"]["probe"], looked["probe"])


def _require_probe(case: RecordCase) -> None:
    if spec_of(case).probe is None:
        skip("the record has no probe: it counts as available everywhere")
