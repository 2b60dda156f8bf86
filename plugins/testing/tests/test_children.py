"""The kit's child processes: builds that crash, hang and tidy up cost one report."""

import os
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

BEHAVIOUR = """
from flashinfer_bench.compile import Builder, Runnable, RunnableMetadata

class Obedient(Builder):
    shares_builds = False

    def __init__(self):
        super().__init__("obedient", "obedient")

    def can_build(self, solution):
        return True

    def build(self, definition, solution):
        exec(solution.sources[0].content, {})
        metadata = RunnableMetadata(
            build_type="toy",
            definition_name=definition.name,
            solution_name=solution.name,
            destination_passing_style=False,
            definition=definition,
        )
        return Runnable(lambda x, y, scale: (x + y) * scale, metadata)
"""

# What a solution does while it is built; the last one does not end.
CODES = {
    "works": "x = 1",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "tidies": """
        import atexit, builtins, pathlib, tempfile
        builtins.kept = tempfile.TemporaryDirectory()
        open(builtins.kept.name + '/a', 'w').close()
        pathlib.Path('b').touch()
        atexit.register(pathlib.Path('b').resolve().unlink)
        """,
    "compiles": """
        import pathlib, subprocess
        subprocess.run(['sh', '-c', 'true'])
        subprocess.run(['g++', '--version'], capture_output=True)
        pathlib.Path('code.py').write_text('')
        """,
    "is killed": """
        import subprocess
        subprocess.run(['sh', '-c', 'true'])
        raise ValueError('it goes on')
        """,
    "hangs": """
        import os, pathlib, subprocess, time
        child = subprocess.Popen(['sleep', '600'])
        pathlib.Path(os.environ["FIB_CACHE_PATH"], "pid").write_text(str(child.pid))
        time.sleep(600)
        """,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def reports(tmp_path_factory, cache):
    """What became of each of CODES, all that end run at the same time."""
    from fib_testing import BuilderCase, children, make_solution, sample_definition

    modules = tmp_path_factory.mktemp("modules")
    (modules / "obedient.py").write_text(BEHAVIOUR)
    definition = sample_definition()
    solutions = [
        make_solution(definition, {"code.py": textwrap.dedent(c)}, "code.py::run", language="toy")
        for c in CODES.values()
    ]
    case = BuilderCase(record="obedient:Obedient", definition=definition, solution=solutions[0])
    inputs = case.make_inputs()
    tasks = [
        children.ChildTask(
            factory=case.factory,
            definition=definition,
            solution=solution,
            cache=cache,
            env=dict(os.environ),
            sys_path=[str(modules), *sys.path],
            kill_at=int(name == "is killed"),
        )
        for name, solution in zip(CODES, solutions, strict=True)
    ]
    arguments = [*inputs, *case.make_outputs(inputs)]
    found = children.run_children(tmp_path_factory.mktemp("ending"), tasks[:-1], arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "TIMEOUT_S", 15.0)  # torch is imported by now
        found += children.run_children(tmp_path_factory.mktemp("hanging"), tasks[-1:], arguments)
    expected = (inputs[0] + inputs[1]) * inputs[2]
    assert found[0].outputs[0].equal(expected)
    return dict(zip(CODES, found, strict=True))


def test_a_build_that_works_brings_its_outputs_and_changes_nothing(reports):
    report = reports["works"]
    assert (report.status, report.problem, report.left) == (0, "", ())
    assert report.report["changes"] == {}


@pytest.mark.parametrize(("name", "status"), [("crashes", -11), ("is killed", -9), ("hangs", -9)])
def test_a_process_that_ends_is_a_problem_of_its_own(reports, name, status):
    assert reports[name].status == status
    assert reports[name].headline == f"the process ended with status {status}"


def test_a_process_that_hangs_is_killed_with_what_it_started(reports, cache):
    stat = Path(f"/proc/{(cache / 'pid').read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_what_a_process_removes_at_its_end_is_not_left_behind(reports):
    assert reports["tidies"].left == ()


def test_compilers_are_counted_and_stray_sources_noted(reports):
    report = reports["compiles"]
    assert report.compiler_runs() == [["sh", "-c", "true"]]
    assert report.report["stray_sources"] == ["code.py"]
