"""The kit's child processes: builds that crash, hang, print and litter cost one report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.torch

BEHAVIOUR = """
import os, signal, sys, time
from pathlib import Path
from flashinfer_bench.compile import Builder, Runnable, RunnableMetadata
from flashinfer_bench.errors import BuildError

class Obedient(Builder):
    shares_builds = False

    def __init__(self):
        super().__init__("obedient", "obedient")

    def can_build(self, solution):
        return True

    def build(self, definition, solution):
        scope = {}
        exec(solution.sources[0].content, scope)
        metadata = RunnableMetadata(
            build_type="toy",
            definition_name=definition.name,
            solution_name=solution.name,
            destination_passing_style=False,
            definition=definition,
        )
        return Runnable(lambda x, y, scale: (x + y) * scale, metadata)
"""


@pytest.fixture(scope="module")
def children(tmp_path_factory):
    from flashinfer_bench.testing.children import Children

    made = Children(tmp_path_factory.mktemp("children"))
    yield made
    made.close()


@pytest.fixture
def build(children, tmp_path, tmp_path_factory):
    """Return a function that runs some code in the place of a build."""
    from flashinfer_bench.testing import BuilderCase, make_solution, sample_definition

    modules = tmp_path_factory.mktemp("modules")
    (modules / "obedient.py").write_text(BEHAVIOUR)

    def run(code, *, processes=1, **env):
        definition = sample_definition()
        solution = make_solution(definition, {"code.py": code}, "code.py::run", language="toy")
        case = BuilderCase(record="obedient:Obedient", definition=definition, solution=solution)
        inputs = case.make_inputs()
        reports = children.build(
            case.factory,
            definition,
            solution,
            [*inputs, *case.make_outputs(inputs)],
            cache=tmp_path / "cache",
            env={**os.environ, **env},
            sys_path=[str(modules), *sys.path],
            processes=processes,
        )
        return SimpleNamespace(expected=(inputs[0] + inputs[1]) * inputs[2], reports=reports)

    return run


def test_a_build_that_works_brings_its_outputs(build):
    done = build("x = 1")
    (report,) = done.reports
    assert (report.status, report.problem) == (0, "")
    assert report.outputs[0].equal(done.expected)
    assert report.report["changes"] == {}
    assert report.left == ()


def test_several_at_once_each_bring_theirs(build):
    done = build("import os; print(os.getpid())", processes=3)
    assert [report.problem for report in done.reports] == [""] * 3
    assert len({report.stdout for report in done.reports}) == 3


def test_an_error_comes_with_its_traceback(build):
    (report,) = build("raise ValueError('no such thing')").reports
    assert "raised ValueError: no such thing" in report.headline
    assert report.headline.startswith("BuildError: solution 'sample_solution': builder obedient")
    assert "Traceback" in report.problem
    assert report.status == 0


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os; os._exit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11),
        ("import os, signal; os.killpg(0, signal.SIGKILL)", -9),
    ],
)
def test_a_process_that_ends_is_a_problem_of_its_own(build, code, status):
    (report,) = build(code).reports
    assert report.status == status
    assert report.headline == f"the process ended with status {status}"
    assert build("x = 1").reports[0].problem == ""


def test_a_process_that_hangs_is_killed_with_what_it_started(build, monkeypatch, tmp_path):
    from flashinfer_bench.testing import children

    monkeypatch.setattr(children, "TIMEOUT_S", 2.0)
    mark = tmp_path / "pid"
    code = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(mark)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    (report,) = build(code).reports
    assert report.status == -9
    assert not _is_running(int(mark.read_text()))
    assert build("x = 1").reports[0].problem == ""


def _is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_what_is_printed_is_told_by_channel(build):
    code = (
        "import os, sys; print('one', flush=True); os.write(1, b'two');"
        "print('three', file=sys.stderr)"
    )
    (report,) = build(code).reports
    assert sorted(report.stdout.split()) == ["one", "two"]
    assert report.stderr.strip() == "three"
    assert report.report["stdout"] == len(report.stdout)


def test_files_that_are_left_behind_are_listed_by_place(build):
    code = (
        "import os, tempfile, pathlib\n"
        "pathlib.Path('a.txt').touch()\n"
        "pathlib.Path.home().joinpath('.toy').mkdir()\n"
        "pathlib.Path.home().joinpath('.toy', 'b.txt').touch()\n"
        "tempfile.mkstemp(suffix='.c')\n"
    )
    (report,) = build(code).reports
    places = [place.partition(":")[0] for place in report.left]
    assert places == ["working directory", "home", "temp"]
    assert "home: .toy/b.txt" in report.left


def test_what_goes_away_with_the_process_is_not_left_behind(build):
    code = (
        "import atexit, builtins, pathlib, tempfile\n"
        "builtins.kept = tempfile.TemporaryDirectory()\n"
        "open(builtins.kept.name + '/a', 'w').close()\n"
        "pathlib.Path('b').touch()\n"
        "atexit.register(pathlib.Path('b').resolve().unlink)\n"
    )
    assert build(code).reports[0].left == ()


def test_the_environment_is_the_one_that_was_given(build):
    code = "import os\nprint(os.environ['TOY'], os.environ['FIB_CACHE_PATH'])"
    (report,) = build(code, TOY="red").reports
    assert report.stdout.startswith("red ")
    assert report.stdout.strip().endswith("/cache")


def test_a_task_can_be_run_without_a_server(build, children, monkeypatch):
    monkeypatch.delattr(os, "fork")  # as on systems that have none
    (report,) = build("x = 1").reports
    assert report.problem == ""


def test_a_server_that_is_gone_is_told_and_replaced(build, children):
    build("x = 1")
    children._server.kill()
    children._server.wait()
    with pytest.raises((RuntimeError, BrokenPipeError)):
        build("x = 1")
    children.close()
    assert build("x = 1").reports[0].problem == ""
