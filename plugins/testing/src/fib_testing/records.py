"""Shared parts of all suites: failures, and checks of records, factories and probes.

The docstring of each test has its reason and advice, which a failure shows.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Optional, Union

import pytest

from flashinfer_bench import env
from flashinfer_bench.plugins import Catalog, Record, import_string

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

BASES = {
    "builder": "flashinfer_bench.compile:Builder",
    "timer": "flashinfer_bench.bench.timing:Timer",
    "key_builder": "flashinfer_bench.apply:ApplyKeyBuilder",
    "adapter": "flashinfer_bench.routing:Adapter",
    "evaluator": "flashinfer_bench.bench.evaluators:Evaluator",
    "executor": "flashinfer_bench.bench.executors.base:Executor",
    "distributor": "flashinfer_bench.bench.backends:Distributor",
}
"""Path of the base class of each kind's factory. Commands have none.

An executor that divides runs among devices of its own is a ``distributor``.
"""

_KEPT: pytest.StashKey[dict[Hashable, Any]] = pytest.StashKey()
_CHILD = str(Path(__file__).with_name("child.py"))
_SECONDS = 120.0
_LATE = "did not answer within"
_WIDTH, _LONGEST = 96, 4000

Step = dict[str, Any]
"""Report of `look` about a step: ``error`` (a traceback), ``answer``, ``changes``, ``heavy``."""


# -------------------------------------------------------------------------------- failures

_advice: list[str] = []  # paragraphs of the running test's docstring except the first


def fail(what: str, *advice: str) -> NoReturn:
    """Fail the running test.

    Parameters
    ----------
    what : str
        What is wrong, with which object; what was expected and what was found.
    *advice : str
        Why it matters and what to do. Default: from the docstring of the test.
    """
    shown = what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…"
    paragraphs = [
        textwrap.fill(
            part[:1].lower() + part[1:], _WIDTH, initial_indent="  ", subsequent_indent="    "
        )
        for part in advice or _advice
    ]
    # Without traceback and cause, because the location in the kit is not helpful.
    raise pytest.fail.Exception("\n".join([shown, *paragraphs]), pytrace=False) from None


def require(condition: object, what: str) -> None:
    """Fail the running test unless `condition` holds; see `fail`."""
    if not condition:
        fail(what)


def require_none(found: Sequence[object], what: str) -> None:
    """Fail the running test if `found` is not empty, and list it after `what`."""
    require(not found, f"{what}:\n{bullets(found)}")


def bullets(items: Sequence[object], limit: int = 12) -> str:
    """Return a list with one line for each of `items`, at most `limit`."""
    lines = [f"    - {item}" for item in items]
    more = len(lines) - limit
    return "\n".join(lines[:limit] + ([f"    … and {more} more"] if more > 0 else []))


def in_short(error: BaseException) -> str:
    """Return type and first line of an exception."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def raised_by(run: Callable[[], object]) -> Optional[BaseException]:
    """Return the exception that code of a plugin or solution raises, or None."""
    try:
        run()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error
    return None


@contextmanager
def must_work(what: str, *, see: str = "") -> Iterator[None]:
    """Fail the running test if the plugin's code in the block raises; skip it if `see` fails."""
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's code may raise anything
        message = f"{what} raised {in_short(error)}"
        if see:
            pytest.skip(f"{message}: see {see}")
        fail(message)


def keep(
    request: pytest.FixtureRequest,
    key: Hashable,
    make: Callable[[], Any],
    owner: Optional[pytest.Session] = None,
) -> Any:
    """Return ``make()``, called once for the running test class, or for `owner`."""
    node = owner or request.node.getparent(pytest.Class) or request.node
    kept = node.stash.setdefault(_KEPT, {})
    if key not in kept:
        kept[key] = make()
    return kept[key]


# ------------------------------------------------------- records, factories and probes


def look(what: str, path: str, libraries: Sequence[str] = ()) -> Step:
    """Import a plugin's module, call a probe, or construct something, in a fresh interpreter.

    Parameters
    ----------
    what : str
        ``plugin``, ``probe`` or ``construct``, which calls a factory without arguments.
    path : str
        The module, as in an entry point: ``package.module`` or ``package.module:object``; or
        ``package.module:function`` of a probe or factory.
    libraries : sequence of str
        Further modules that count as heavy.
    """
    request = {"what": what, "path": path, "libraries": libraries, "sys_path": sys.path}
    done = subprocess.run(
        [sys.executable, _CHILD],
        input=json.dumps({**request, "timeout_s": env.probe_timeout_s()}),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    try:
        step: Step = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        error = f"the process ended with status {done.returncode}\n{done.stderr[-2000:]}"
        step = {"error": error, "answer": None, "changes": {}, "heavy": []}
    return step


def require_unchanged(what: str, step: Step) -> None:
    """Fail if a step of `look` changed the process."""
    found = [f"{name}: {text}" for name, text in step["changes"].items()]
    require_none(found, f"{what} changed the process")


def require_constructible(path: str, *arguments: Any) -> Any:
    """Return the result of the factory; fail if it raises."""
    given = ", ".join(type(argument).__name__ for argument in arguments)
    with must_work(f"{path}({given})"):
        return import_string(path)(*arguments)


def cannot_be_used(record: Any) -> str:
    """Return why the record is unavailable here, according to its probe; empty if it is."""
    entry = Catalog.of(record, timeout_s=30.0).find(record.kind, record.name)
    answer = entry.availability()
    return "" if answer else f"{entry.label} is unavailable here: {answer.reason}"


def check_summaries(self: Any, records: list[Record]) -> None:
    """Require a one-line summary.

    Why it matters: users of `fib plugins list` choose by summaries.

    To do: give the record a one-line summary that distinguishes it from others.
    """
    for record in records:
        require(record.summary, f"{type(record).__name__} {record.name!r} has no summary")


def check_types(self: Any, factories: list[tuple[str, str]]) -> None:
    """Require a path to a subclass of the kind's base class; for a command, to a callable.

    Why it matters: the record is listed, but fails when it is first used.

    To do: name a subclass of the base class as "package.module:Name", or, for a command, a
    function with annotated parameters or a typer.Typer. Import optional libraries inside functions,
    and let the probe report that they are missing.
    """
    for kind, path in factories:
        try:
            found = import_string(path)
        except Exception as error:  # noqa: BLE001 - a plugin's module may raise anything
            fail(f"{path} cannot be imported: {in_short(error)}")
        if kind not in BASES:
            wanted = "neither a function nor a typer.Typer"
            require(callable(found), f"{path} is {found!r}, which is {wanted}")
            continue
        base = import_string(BASES[kind])
        require(
            isinstance(found, type) and issubclass(found, base),
            f"{path} is {found!r}, which is not a subclass of {base.__module__}.{base.__name__}",
        )


def check_import(self: Any, imported: tuple[str, Step]) -> None:
    """Require that the module of the entry point is light and does not change the process.

    Why it matters: every start of `fib` loads all plugins, and their side effects apply to every
    program that uses flashinfer_bench.

    To do: put only hooks in that module; records refer to code by string. Import inside functions,
    and do not change global state, or restore it.
    """
    module, step = imported
    require(not step["error"], f"importing {module} raised:\n{step['error']}")
    require(not step["heavy"], f"importing {module} imports {', '.join(step['heavy'])}")
    require_unchanged(f"importing {module}", step)


def check_answers(self: Any, probed: list[tuple[str, Step]]) -> None:
    """Require an answer in time, with reason and remedy if something is unavailable.

    Why it matters: a probe that raises or is too slow counts as unavailable, delays `fib plugins
    list`, and gives users a traceback instead of advice.

    To do: check files and versions; do not import the library or start its compiler. Catch errors,
    and return Availability(False, reason, remedy): what to install or set.
    """
    for path, step in probed:
        answers = _answers(path, step)
        raised = [answer["reason"] for answer in answers if answer["raised"]]
        require(not raised, f"{path}: {raised[:1]}")
        # The first call includes imports, the slowest part; a busy machine may delay any call.
        late = [answer["reason"] for answer in answers if _LATE in answer["reason"]]
        require(len(late) < len(answers), f"{path}: {late[:1]}")
        bare = [answer["reason"] for answer in answers if not (answer["ok"] or answer["remedy"])]
        bare = [reason for reason in bare if _LATE not in reason]
        require(not bare, f"{path} gives no reason or remedy: {bare[:1]}")


def check_purity(self: Any, probed: list[tuple[str, Step]]) -> None:
    """Require the same answer each time, without heavy imports and side effects.

    Why it matters: the answer is cached, and probes may run in a process that forks others, where
    importing a library is slow and may create a device context.

    To do: make it depend only on the machine and the environment. Use importlib.util.find_spec and
    importlib.metadata.version, and do not change global state.
    """
    for path, step in probed:
        answers = [each for each in _answers(path, step) if _LATE not in each["reason"]]
        kept = sorted({f"{answer['ok']}: {answer['reason']}" for answer in answers})
        require(len(kept) <= 1, f"{path} gave different answers:\n{bullets(kept)}")
        require(not step["heavy"], f"{path} imports {', '.join(step['heavy'])}")
        require_unchanged(f"calling {path}", step)


def _answers(path: str, step: Step) -> list[dict[str, Any]]:
    require(not step["error"], f"calling {path} ended the process:\n{step['error']}")
    answers: list[dict[str, Any]] = step["answer"]
    return answers


@dataclass(frozen=True, kw_only=True)
class RecordCase:
    """Base class of the cases of records.

    Parameters
    ----------
    record : Record or str
        The record that the plugin registers, or the path of the factory.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    """

    record: Union[Record, str]
    plugin: Optional[str] = None

    @property
    def factory(self) -> str:
        """Path of the factory: ``"package.module:Name"``."""
        return self.record if isinstance(self.record, str) else self.record.factory


# ------------------------------------------------------------------------------- suites


class Conformance:
    """Base class of the suites for plugins and for records."""

    case_type: ClassVar[type]
    """Type of the fixture ``case``."""

    @pytest.fixture(autouse=True)
    def _process_is_restored(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Restore process state that a plugin's code has changed."""
        _advice[:] = (inspect.getdoc(request.function) or "").split("\n\n")[1:]
        environment, path = dict(os.environ), list(sys.path)
        yield
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path

    @pytest.fixture
    def case(self, request: pytest.FixtureRequest) -> Any:
        """Return the case; the author's class overrides this fixture."""
        self._refuse(request, "none")

    @pytest.fixture
    def given(self, case: Any, request: pytest.FixtureRequest) -> Any:
        """Return the author's case, if it is of the right type."""
        if not isinstance(case, self.case_type):
            self._refuse(request, type(case).__name__)
        return case

    @pytest.fixture
    def libraries(self) -> tuple[str, ...]:
        """Return further modules that neither plugin nor probe may import."""
        return ()

    @pytest.fixture
    def imported(
        self, module: str, libraries: tuple[str, ...], request: pytest.FixtureRequest
    ) -> tuple[str, Step]:
        """Return the plugin's module and the report of importing it."""
        return module, _look_once(request, "plugin", module, libraries)

    @pytest.fixture
    def probed(
        self, records: list[Record], libraries: tuple[str, ...], request: pytest.FixtureRequest
    ) -> list[tuple[str, Step]]:
        """Return each probe and the report of calling it; skip the test if there is none."""
        probes = sorted({record.probe for record in records if record.probe is not None})
        if not probes:
            pytest.skip("without a probe, a record is always available")
        return [(path, _look_once(request, "probe", path, libraries)) for path in probes]

    def _refuse(self, request: pytest.FixtureRequest, found: str) -> NoReturn:
        wanted = self.case_type.__name__
        fail(
            f"{request.cls.__name__} needs a fixture 'case' that returns a {wanted}; found {found}",
            "why it matters: the case is what the suite checks",
            f"to do: define a fixture in the class: def case(self): return {wanted}(…)",
        )


def _look_once(
    request: pytest.FixtureRequest, what: str, path: str, libraries: tuple[str, ...]
) -> Step:
    """Return the result of `look`, which classes share."""
    step: Step = keep(
        request,
        ("look", what, path, libraries),
        lambda: look(what, path, libraries),
        request.session,
    )
    return step


class RecordConformance(Conformance):
    """Checks for the record of any kind; the suites for records subclass it."""

    kind: ClassVar[str] = ""
    """The kind of the records."""

    def arguments(self, given: Any) -> tuple[Any, ...]:
        """Return the arguments with which the host calls the factory."""
        return ()

    def require_available(self, given: Any, request: pytest.FixtureRequest) -> None:
        """Skip the test if the record is unavailable here, according to its probe."""
        record = given.record
        if isinstance(record, str) or record.probe is None:
            return
        why = keep(request, ("availability", record.probe), lambda: cannot_be_used(record))
        if why:
            pytest.skip(why)

    @pytest.fixture
    def records(self, given: Any) -> list[Record]:
        """Return the record; skip the test if there is none."""
        return [record_of(given)]

    @pytest.fixture
    def factories(self, given: Any) -> list[tuple[str, str]]:
        """Return kind and path of the factory."""
        return [(self.kind, given.factory)]

    @pytest.fixture
    def made(self, given: Any, request: pytest.FixtureRequest) -> Any:
        """Return a new object of the factory; skip the test if it is unavailable here."""
        self.require_available(given, request)
        return construct(given, *self.arguments(given))

    @pytest.fixture
    def module(self, given: Any) -> str:
        """Return the plugin's module."""
        module: str = given.plugin or given.factory.partition(":")[0].partition(".")[0]
        return module

    test_the_record_says_what_it_is = check_summaries
    test_the_factory_is_of_the_right_type = check_types
    test_importing_the_plugin_is_light = check_import
    test_the_probe_answers = check_answers
    test_the_probe_is_pure = check_purity

    def test_the_factory_takes_what_it_is_given(
        self, given: Any, request: pytest.FixtureRequest
    ) -> None:
        """The factory can be called: a key builder with the definition, others without arguments.

        Why it matters: the host calls it in this way.

        To do: give __init__ no further required parameters. It must not search for tools or start
        anything; the probe and the first use do that.
        """
        load_factory(given)
        self.require_available(given, request)
        require_constructible(given.factory, *self.arguments(given))


def check_name_and_version(self: Any, given: Any, made: Any) -> None:
    """Require a name and a version, and that the name is that of the record.

    Why it matters: traces record both, and results with different ones are not comparable; a name
    that differs from the record's cannot be looked up.

    To do: set the record's name and a version on the class, and increase the version when results
    may change.
    """
    require(
        made.name and made.version, f"its name is {made.name!r} and its version {made.version!r}"
    )
    name = getattr(given.record, "name", made.name)
    require(made.name == name, f"its name is {made.name!r}, but the record's is {name!r}")


def record_of(case: Any) -> Any:
    """Return the record of a case; skip the test if it has none."""
    if isinstance(case.record, str):
        pytest.skip("the case has a factory, not a record")
    return case.record


def load_factory(case: Any) -> Any:
    """Return the record's factory; skip the test if it cannot be imported."""
    path = case.factory
    with must_work(f"importing {path}", see="test_the_factory_is_of_the_right_type"):
        return import_string(path)


def construct(case: Any, *arguments: Any) -> Any:
    """Return the result of the factory; skip the test if it raises."""
    factory = load_factory(case)
    with must_work("the factory", see="test_the_factory_takes_what_it_is_given"):
        return factory(*arguments)
