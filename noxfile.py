"""Every task of the project, each in its own environment under ``.nox``.

``nox -l`` lists them; ``nox -s demo`` and ``nox -s tests`` are the two a newcomer needs.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
# What the meta-distribution does not pull in unless it is asked to.
OPTIONAL_PLUGINS = ("agents", "builder_tilelang", "executor_ray", "serve", "testing")
DEFAULT_PLUGINS = [name for name in PLUGINS if name not in OPTIONAL_PLUGINS]
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
# What the builders compile with and through; tilelang brings the apache-tvm-ffi that it needs.
LIBRARIES = ("triton", "tilelang", "ninja")
# The ends of the range of apache-tvm-ffi that its builder supports.
TVM_FFI = ("0.1.11", "0.1.15.post2")
# Releases of FlashInfer that its adapters are tested with; the first one in all other sessions.
FLASHINFER = ("0.6.18.post1", "0.6.9", "0.7.2.post1")
# All that importing it needs beside torch; what it depends on itself are gigabytes.
FLASHINFER_NEEDS = ("apache-tvm-ffi", "nvidia-ml-py", "packaging", "requests", "tqdm")
# What the tests of one plugin need beyond what it depends on.
NEEDS = {"builder_triton": ("triton",), "adapters_flashinfer": FLASHINFER_NEEDS}
TEST_TOOLS = (
    *("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "pyte", "huggingface_hub"),
    *("build", "hatchling", "editables"),  # some tests make distributions and install them
)

DOCS_TOOLS = ("mkdocs-material==9.8.2",)
TYPE_TOOLS = ("mypy", "types-PyYAML", "nox")

# pip, not uv: a machine's own pip settings (an index of CPU builds of torch, say) then apply.
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False
nox.needs_version = ">=2024.4.15"


def _install(session: nox.Session, *packages: str) -> None:
    session.install("-q", "--disable-pip-version-check", *CONSTRAINTS, *packages)


def _install_torch(session: nox.Session) -> None:
    # First and pinned: a bare "torch" asked for by anything else would bring the newest release.
    _install(session, "torch", "numpy", "safetensors")


def _needed(*plugins: str) -> list[str]:
    """Return the folders of `plugins`, of the plugins that they need, and of core."""
    found: dict[str, None] = {}
    waiting = [*plugins]
    while waiting:
        folder = f"plugins/{waiting.pop(0)}"
        if folder in found:
            continue
        found[folder] = None
        names = re.findall(r'"fib-([a-z-]+)~=', (ROOT / folder / "pyproject.toml").read_text())
        waiting += [name.replace("-", "_") for name in names]
    return ["core", *found]


def _editable(*folders: str) -> list[str]:
    return [part for folder in folders for part in ("-e", str(ROOT / folder))]


def _install_flashinfer(session: nox.Session, version: str = FLASHINFER[0]) -> None:
    session.install(
        "-q", "--disable-pip-version-check", "--no-deps", f"flashinfer-python=={version}"
    )


def _install_everything(session: nox.Session, *more: str) -> None:
    _install_torch(session)
    plugins = [f"plugins/{name}" for name in PLUGINS if name != "executor_ray"]
    _install(session, *LIBRARIES, *_editable("core", *plugins), *more)
    _install_without_ray(session)


def _install_without_ray(session: nox.Session) -> None:
    """Install the executor for Ray without Ray, which is larger than all else but torch."""
    _install(session, "--no-deps", *_editable("plugins/executor_ray"))


def _workers() -> list[str]:
    # Each worker gets its share in order, so that most modules stay together; then it helps out.
    return ["-n", str(min(8, os.cpu_count() or 1)), "--dist", "worksteal"]


@nox.session
def demo(session: nox.Session) -> None:
    """Benchmark the sample dataset, and say who won; results go to demo-output/."""
    session.log("installs torch and this project, then runs a benchmark of about two minutes")
    _install_torch(session)
    # One call, so that pip finds the parts that the meta-distribution pins in their folders.
    parts = ("core", *(f"plugins/{name}" for name in DEFAULT_PLUGINS))
    _install(session, str(ROOT), *(str(ROOT / part) for part in parts))
    session.run("python", str(ROOT / "examples" / "demo.py"), *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test, with core and all plugins installed."""
    _run_tests(session, [])


@nox.session
def long(session: nox.Session) -> None:
    """Run every test, with many examples for each property instead of few."""
    _run_tests(session, [], FIB_TESTS_PROFILE="long")


def _run_tests(session: nox.Session, folders: list[str], **environment: str) -> None:
    _install_everything(session, *FLASHINFER_NEEDS, *TEST_TOOLS)
    _install_flashinfer(session)
    _pytest(session, *folders, *session.posargs, **environment)


def _pytest(session: nox.Session, *arguments: str, **environment: str) -> None:
    strict = {"FIB_STRICT_PLUGINS": "1", **environment}
    session.run("pytest", *_workers(), *arguments, env=strict)


def _tests_of(name: str) -> None:
    """Make ``tests(NAME)``: the tests of one distribution and of those that depend on it."""
    dependent = [each for each in PLUGINS if name == "core" or f"plugins/{name}" in _needed(each)]
    folders = [f"plugins/{each}/tests" for each in dependent]

    def run(session: nox.Session) -> None:
        _run_tests(session, ["core/tests", *folders] if name == "core" else folders)

    run.__doc__ = f"Run the tests of {name}, and of what depends on it."
    nox.session(run, name=f"tests({name})")


for _name in ("core", *PLUGINS):
    _tests_of(_name)


@nox.session
def core(session: nox.Session) -> None:
    """Run core's tests with core alone: zero plugins."""
    _install_torch(session)
    _install(session, *_editable("core"), *TEST_TOOLS)
    session.run("pytest", *_workers(), "core/tests", *session.posargs)


@nox.session(python=["3.10", "3.11", "3.12", "3.13"])
def light(session: nox.Session) -> None:
    """Run the tests that need no torch on every supported Python: data, plugins, command line."""
    _install(session, *_editable("core"), *TEST_TOOLS)
    session.run("pytest", *_workers(), "core/tests", *session.posargs)


@nox.session
@nox.parametrize("name", PLUGINS, ids=PLUGINS)
def plugin(session: nox.Session, name: str) -> None:
    """Run the tests of one plugin with core and that plugin alone."""
    _install_torch(session)
    folders = _needed(name, "testing")  # all of them are tested with the conformance kit
    _install(session, *_editable(*folders), *NEEDS.get(name, ()), *TEST_TOOLS)
    if name == "adapters_flashinfer":
        _install_flashinfer(session)
    session.run(
        "pytest", f"plugins/{name}/tests", *session.posargs, env={"FIB_STRICT_PLUGINS": "1"}
    )


@nox.session
def tvmffi(session: nox.Session) -> None:
    """Run the tests of the TVM-FFI builder at both ends of the range that it supports."""
    _install_torch(session)
    _install(session, *TEST_TOOLS)
    _install(session, "ninja", *_editable(*_needed("builder_tvmffi", "testing")))
    _tests_with_each_tvm_ffi(session)


def _tests_with_each_tvm_ffi(session: nox.Session) -> None:
    for version in TVM_FFI:
        # Without the constraints, which name one version for all other sessions.
        wanted = f"apache-tvm-ffi=={version}"
        session.install("-q", "--disable-pip-version-check", "--no-deps", wanted)
        _pytest(session, "plugins/builder_tvmffi/tests")


@nox.session
def ray(session: nox.Session) -> None:
    """Run the tests of the executor for Ray, on a cluster of simulated nodes."""
    _install_torch(session)
    folders = _needed("executor_ray", "judge", "builder_python", "sandbox_linux", "testing")
    _install(session, *_editable(*folders), *TEST_TOOLS)
    # One process: all tests share the cluster.
    session.run("pytest", "plugins/executor_ray/tests", *session.posargs)


@nox.session
def flashinfer(session: nox.Session) -> None:
    """Run the tests of the FlashInfer adapters with other releases of it."""
    _install_torch(session)
    # Calls are keyed by what fib-ops-llm knows of attention.
    folders = _needed("adapters_flashinfer", "ops_llm", "testing")
    _install(session, *_editable(*folders), *FLASHINFER_NEEDS, *TEST_TOOLS)
    _tests_with_each_flashinfer(session)


def _tests_with_each_flashinfer(session: nox.Session) -> None:
    for version in session.posargs or FLASHINFER[1:]:
        _install_flashinfer(session, version)
        _pytest(session, "plugins/adapters_flashinfer/tests")


def _lint(session: nox.Session) -> None:
    session.run("ruff", "check", "--no-cache")
    session.run("ruff", "format", "--check", "--diff")


def _types(session: nox.Session) -> None:
    sources = ["core/src", *(f"plugins/{name}/src" for name in PLUGINS)]
    for source in (*sources, "examples/fib-builder-example/src"):
        session.run("mypy", source)


def _exploits_quick(session: nox.Session) -> None:
    session.run("pytest", "tests/exploits/check_quick.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    _install(session, "ruff")
    _lint(session)


@nox.session
def types(session: nox.Session) -> None:
    """Check types: strict on core and the plugins."""
    _install_everything(session, *TYPE_TOOLS, *TEST_TOOLS)
    _types(session)


@nox.session
def imports(session: nox.Session) -> None:
    """Check the layers of core, and that plugins do not know one another."""
    plugins = [f"plugins/{name}" for name in PLUGINS if name != "executor_ray"]
    _install(session, *_editable("core", *plugins), "import-linter")
    _install_without_ray(session)
    session.run("lint-imports")


@nox.session
def checks(session: nox.Session) -> None:
    """Check style, types, imports, one exploit of each class, and other releases of libraries."""
    tools = (*TYPE_TOOLS, "ruff", "import-linter", *TEST_TOOLS, *FLASHINFER_NEEDS)
    _install_everything(session, *tools)
    _lint(session)
    _types(session)
    session.run("lint-imports")
    _exploits_quick(session)
    # Last: what they install would not do for the rest.
    _tests_with_each_flashinfer(session)
    _tests_with_each_tvm_ffi(session)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel and source archive of every distribution into dist/."""
    _install(session, "build", "hatchling", "twine")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for folder in (".", "core", *(f"plugins/{name}" for name in PLUGINS)):
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), folder)
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, with search, into site/; fails on broken links or lost pages."""
    _install(session, *DOCS_TOOLS)
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
    session.log("to read it: python -m http.server -d site")


@nox.session
def exploits(session: nox.Session) -> None:
    """Run every solution that cheats, with honest ones in between; fails on a new escape."""
    _install_everything(session)
    session.run("python", "-m", "tests.exploits.run", *session.posargs)


@nox.session
def exploits_quick(session: nox.Session) -> None:
    """Run one exploit of each class, with their honest controls; only clear wins count."""
    _install_everything(session, *TEST_TOOLS)
    _exploits_quick(session)


@nox.session
def misbehaving(session: nox.Session) -> None:
    """Run every solution that crashes, hangs or floods, and an honest one after each."""
    _install_everything(session, *TEST_TOOLS)
    session.run("pytest", "tests/exploits/check_misbehaving.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the project's own benchmarks, each printing JSON: nox -s bench -- bench_data.py."""
    _install_everything(session)
    names = session.posargs or [path.name for path in sorted(ROOT.glob("benchmarks/bench_*.py"))]
    for name in names:
        session.run("python", str(ROOT / "benchmarks" / name))
