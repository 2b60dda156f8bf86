"""What all suites share: how a test says no, and the checks of records, factories and probes.

The docstring of each test of a suite has the reason for it and the advice; a failure shows both.
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
}
"""Path of the class that the factory of each kind subclasses. A command's is no class."""

_KEPT: pytest.StashKey[dict[Hashable, Any]] = pytest.StashKey()
_CHILD = str(Path(__file__).with_name("child.py"))
_SECONDS = 120.0
_LATE = "did not answer within"
_WIDTH, _LONGEST = 96, 4000

Step = dict[str, Any]
"""What `look` tells of one step: ``error`` (a traceback), ``answer``, ``changes``, ``heavy``."""


# ----------------------------------------------------------------------- how a test says no

_advice: list[str] = []  # the paragraphs of the running test's docstring, without the first


def fail(what: str, *advice: str) -> NoReturn:
    """Fail the running test.

    Parameters
    ----------
    what : str
        What is wrong, and with which object; what was expected and what was found.
    *advice : str
        Why it matters and what to do. Default: what the docstring of the test says.
    """
    shown = what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…"
    paragraphs = [
        textwrap.fill(
            part[:1].lower() + part[1:], _WIDTH, initial_indent="  ", subsequent_indent="    "
        )
        for part in advice or _advice
    ]
    # Neither traceback nor cause: where in the kit the check stands helps nobody.
    raise pytest.fail.Exception("\n".join([shown, *paragraphs]), pytrace=False) from None


def require(condition: object, what: str) -> None:
    """Fail the running test unless `condition` holds; see `fail`."""
    if not condition:
        fail(what)


def require_none(found: Sequence[object], what: str) -> None:
    """Fail the running test if anything was found, and list it below `what`."""
    require(not found, f"{what}:\n{bullets(found)}")


def bullets(items: Sequence[object], limit: int = 12) -> str:
    """Return one line for each of `items`, at most `limit`."""
    lines = [f"    - {item}" for item in items]
    more = len(lines) - limit
    return "\n".join(lines[:limit] + ([f"    … and {more} more"] if more > 0 else []))


def in_short(error: BaseException) -> str:
    """Return type and first line of an exception, for one line of a message."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def raised_by(run: Callable[[], object]) -> Optional[BaseException]:
    """Return what calling a plugin's or a solution's code raises; None if it does not."""
    try:
        run()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error
    return None


@contextmanager
def must_work(what: str) -> Iterator[None]:
    """Fail the running test if the plugin's code in the block raises."""
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's code may raise anything
        fail(f"{what} raised {in_short(error)}")


@contextmanager
def needed(what: str, see: str) -> Iterator[None]:
    """Skip the running test if the plugin's code in the block raises, which `see` reports."""
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's code may raise anything
        pytest.skip(f"{what} raised {in_short(error)}: see {see}")


def keep(
    request: pytest.FixtureRequest,
    key: Hashable,
    make: Callable[[], Any],
    owner: Optional[pytest.Session] = None,
) -> Any:
    """Return ``make()``, made once for the test class that is running, or for `owner`."""
    node = owner or request.node.getparent(pytest.Class) or request.node
    kept = node.stash.setdefault(_KEPT, {})
    if key not in kept:
        kept[key] = make()
    return kept[key]


# ------------------------------------------------------- records, factories and probes


def look(
    *,
    plugin: Optional[str] = None,
    probe: Optional[str] = None,
    construct: Optional[str] = None,
    libraries: Sequence[str] = (),
) -> dict[str, Step]:
    """Import a plugin's module, ask a probe, construct something: in a fresh interpreter.

    Parameters
    ----------
    plugin : str, optional
        The module, as in an entry point: ``package.module`` or ``package.module:object``.
    probe : str, optional
        ``"package.module:function"``.
    construct : str, optional
        ``"package.module:Name"``, called without arguments.
    libraries : sequence of str
        Modules that count as heavy, besides those that always do.
    """
    steps = {"plugin": plugin, "probe": probe, "construct": construct}
    more = {"libraries": list(libraries), "timeout_s": env.probe_timeout_s(), "sys_path": sys.path}
    done = subprocess.run(
        [sys.executable, _CHILD],
        input=json.dumps({**steps, **more}),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    try:
        found: dict[str, Step] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        error = f"the process ended with status {done.returncode}\n{done.stderr[-2000:]}"
        nothing: Step = {"error": error, "answer": None, "changes": {}, "heavy": []}
        found = dict.fromkeys(steps, nothing)
    return found


def require_unchanged(what: str, step: Step) -> None:
    """Fail if a step of `look` changed the process."""
    found = [f"{name}: {text}" for name, text in step["changes"].items()]
    require_none(found, f"{what} changed the process")


def require_constructible(path: str, *arguments: Any) -> Any:
    """Return what the factory makes; fail if it raises."""
    given = ", ".join(type(argument).__name__ for argument in arguments)
    with must_work(f"{path}({given})"):
        return import_string(path)(*arguments)


def cannot_be_used(record: Any) -> str:
    """Return why the record's code cannot be used here, as its probe says; empty if it can."""
    entry = Catalog.of(record, timeout_s=30.0).find(record.kind, record.name)
    answer = entry.availability()
    return "" if answer else f"{entry.label} cannot be used here: {answer.reason}"


def check_summaries(self: Any, records: list[Record]) -> None:
    """Require a summary, in one line, by which it can be told from others.

    Why it matters: without it `fib plugins list` shows nothing that a user could choose by.

    To do: give the record a summary, one line that says what is special about it.
    """
    for record in records:
        require(record.summary, f"{type(record).__name__} {record.name!r} has no summary")


def check_types(self: Any, factories: list[tuple[str, str]]) -> None:
    """Require a path to a subclass of its kind's base; of a command, to something callable.

    Why it matters: the record is listed, but the host refuses it when it is first needed.

    To do: name a subclass of the kind's base as "package.module:Name", or, for a command, a
    function with annotated parameters or a typer.Typer. Keep the imports of optional libraries
    inside functions, and let the probe say that they are missing.
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
    """Require that the module of the entry point is light, and changes nothing.

    Why it matters: every start of `fib` loads every plugin, also those that are not used, and what
    loading one changes is changed in every program that uses flashinfer_bench.

    To do: let that module hold the hooks and nothing else; records name code by string. Import
    inside the functions that need it, and leave global state alone, or restore it.
    """
    module, step = imported
    require(not step["error"], f"importing {module} raised:\n{step['error']}")
    require(not step["heavy"], f"importing {module} imports {', '.join(step['heavy'])}")
    require_unchanged(f"importing {module}", step)


def check_answers(self: Any, probed: list[tuple[str, Step]]) -> None:
    """Require an answer in time, and with a no both reason and remedy.

    Why it matters: a probe that raises or is too slow counts as a no, which delays `fib plugins
    list` and leaves the user with a traceback in place of advice.

    To do: look for files and versions; do not import the library or start its compiler. Catch what
    can go wrong, and return Availability(False, reason, remedy): what to install, what to set.
    """
    for path, step in probed:
        answers = _answers(path, step)
        raised = [answer["reason"] for answer in answers if answer["raised"]]
        require(not raised, f"{path}: {raised[:1]}")
        # Importing, the slowest part, is paid by the first; a busy machine may delay any of them.
        late = [answer["reason"] for answer in answers if _LATE in answer["reason"]]
        require(len(late) < len(answers), f"{path}: {late[:1]}")
        bare = [answer["reason"] for answer in answers if not (answer["ok"] or answer["remedy"])]
        bare = [reason for reason in bare if _LATE not in reason]
        require(not bare, f"{path} says no without a remedy: {bare[:1]}")


def check_purity(self: Any, probed: list[tuple[str, Step]]) -> None:
    """Require the same answer each time, with nothing imported that is heavy, and nothing changed.

    Why it matters: it is asked once, its answer is kept, and the probes of all plugins may run in
    the process that forks others: importing a library there is slow, and may make a device context.

    To do: let it depend on the machine and the environment only. Use importlib.util.find_spec and
    importlib.metadata.version, and leave global state alone.
    """
    for path, step in probed:
        answers = [each for each in _answers(path, step) if _LATE not in each["reason"]]
        kept = sorted({f"{answer['ok']}: {answer['reason']}" for answer in answers})
        require(len(kept) <= 1, f"{path} gave different answers when asked again:\n{bullets(kept)}")
        require(not step["heavy"], f"{path} imports {', '.join(step['heavy'])}")
        require_unchanged(f"asking {path}", step)


def _answers(path: str, step: Step) -> list[dict[str, Any]]:
    require(not step["error"], f"asking {path} ended the process:\n{step['error']}")
    answers: list[dict[str, Any]] = step["answer"]
    return answers


@dataclass(frozen=True, kw_only=True)
class RecordCase:
    """What the cases of all records have in common.

    Parameters
    ----------
    record : Record or str
        What the plugin registers, or the path of the factory.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    """

    record: Union[Record, str]
    plugin: Optional[str] = None

    @property
    def factory(self) -> str:
        """Where the code is: ``"package.module:Name"``."""
        return self.record if isinstance(self.record, str) else self.record.factory


# ------------------------------------------------------------------------------- suites


class Conformance:
    """What the suites for plugins and for records of any kind have in common."""

    case_type: ClassVar[type]
    """What the fixture ``case`` returns."""

    @pytest.fixture(autouse=True)
    def _process_is_restored(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Undo what a plugin's code does to this process, so that other tests see only theirs."""
        _advice[:] = (inspect.getdoc(request.function) or "").split("\n\n")[1:]
        environment, path = dict(os.environ), list(sys.path)
        yield
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path

    @pytest.fixture
    def case(self, request: pytest.FixtureRequest) -> Any:
        """Return what is to be checked; the author's class has another one in its place."""
        self._refuse(request, "none")

    @pytest.fixture
    def given(self, case: Any, request: pytest.FixtureRequest) -> Any:
        """Return the author's case, if it is of the right type."""
        if not isinstance(case, self.case_type):
            self._refuse(request, type(case).__name__)
        return case

    def _refuse(self, request: pytest.FixtureRequest, found: str) -> NoReturn:
        wanted = self.case_type.__name__
        fail(
            f"{request.cls.__name__} has no fixture 'case' that returns a {wanted}, but {found}",
            "why it matters: the suite does not know what to check",
            f"to do: define a fixture in the class: def case(self): return {wanted}(…)",
        )


class RecordConformance(Conformance):
    """Checks for the record of any kind; the suites for records subclass it."""

    kind: ClassVar[str] = ""
    """The kind of the records."""

    def arguments(self, given: Any) -> tuple[Any, ...]:
        """Return what the host makes the factory's object with."""
        return ()

    def libraries(self, given: Any) -> tuple[str, ...]:
        """Return modules that neither plugin nor probe may import, besides the heavy ones."""
        return ()

    def require_available(self, given: Any, request: pytest.FixtureRequest) -> None:
        """Skip the test if the record's probe says that its code cannot be used here."""
        record = given.record
        if isinstance(record, str) or record.probe is None:
            return
        why = keep(request, ("availability", record.probe), lambda: cannot_be_used(record))
        if why:
            pytest.skip(why)

    @pytest.fixture
    def records(self, given: Any) -> list[Record]:
        """Return the record, or skip the test where there is none."""
        return [record_of(given)]

    @pytest.fixture
    def factories(self, given: Any) -> list[tuple[str, str]]:
        """Return kind and path of the factory."""
        return [(self.kind, given.factory)]

    @pytest.fixture
    def made(self, given: Any, request: pytest.FixtureRequest) -> Any:
        """Return a new object of the factory; skip the test if there is none here."""
        self.require_available(given, request)
        return construct(given, *self.arguments(given))

    @pytest.fixture
    def looked(self, request: pytest.FixtureRequest, given: Any) -> dict[str, tuple[str, Step]]:
        """Return what a fresh interpreter found out about plugin and probe."""
        plugin = given.plugin or given.factory.partition(":")[0].partition(".")[0]
        names = {"plugin": plugin, "probe": getattr(given.record, "probe", None)}
        libraries = self.libraries(given)
        steps: dict[str, Step] = keep(
            request,
            ("look", *names.values(), libraries),
            lambda: look(**names, libraries=libraries),
            request.session,
        )
        return {what: (name, steps[what]) for what, name in names.items() if name}

    @pytest.fixture
    def imported(self, looked: dict[str, tuple[str, Step]]) -> tuple[str, Step]:
        """Return the plugin's module, and what importing it did."""
        return looked["plugin"]

    @pytest.fixture
    def probed(
        self, records: list[Record], looked: dict[str, tuple[str, Step]]
    ) -> list[tuple[str, Step]]:
        """Return the probe, and what asking it did."""
        if "probe" not in looked:
            pytest.skip("the record has no probe: it counts as available everywhere")
        return [looked["probe"]]

    test_the_record_says_what_it_is = check_summaries
    test_the_factory_is_of_the_right_type = check_types
    test_importing_the_plugin_is_light = check_import
    test_the_probe_answers = check_answers
    test_the_probe_is_pure = check_purity

    def test_the_factory_takes_what_it_is_given(
        self, given: Any, request: pytest.FixtureRequest
    ) -> None:
        """The host constructs it itself: a key builder with the definition, all others bare.

        Why it matters: what the host cannot construct, nobody can use.

        To do: give __init__ no further required parameters, and let it neither look for tools nor
        start anything: that is for the probe, and for the first use.
        """
        load_factory(given)
        self.require_available(given, request)
        require_constructible(given.factory, *self.arguments(given))


def check_name_and_version(self: Any, given: Any, made: Any) -> None:
    """Require both, and that the name is the record's.

    Why it matters: both go into every trace, where results of different ones are not comparable; a
    trace with another name than the record's names something that nobody can find.

    To do: use one name, set it and a version on the class, and raise the version when results may
    change.
    """
    require(
        made.name and made.version, f"its name is {made.name!r} and its version {made.version!r}"
    )
    name = getattr(given.record, "name", made.name)
    require(made.name == name, f"its name is {made.name!r}, and the record's {name!r}")


def record_of(case: Any) -> Any:
    """Return the record of a case, or skip the test where it has none."""
    if isinstance(case.record, str):
        pytest.skip("the case names a factory, not a record")
    return case.record


def load_factory(case: Any) -> Any:
    """Return the object that the record names, or skip the test where it cannot be imported."""
    path = case.factory
    with needed(f"importing {path}", "test_the_factory_is_of_the_right_type"):
        return import_string(path)


def construct(case: Any, *arguments: Any) -> Any:
    """Return what the factory makes, or skip the test where it raises."""
    factory = load_factory(case)
    with needed("the factory", "test_the_factory_takes_what_it_is_given"):
        return factory(*arguments)
