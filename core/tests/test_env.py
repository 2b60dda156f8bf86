from __future__ import annotations

import ast
from pathlib import Path

import pytest

import flashinfer_bench
from flashinfer_bench import env

PACKAGE = Path(flashinfer_bench.__file__).parent


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in env.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)


def test_defaults() -> None:
    home = Path.home() / ".cache" / "flashinfer_bench"
    assert env.dataset_path() == home / "dataset"
    assert env.cache_path() == home / "cache"
    assert not env.apply_enabled()
    assert not env.tracing_enabled()
    assert not env.no_plugins()
    assert not env.strict_plugins()
    assert env.disabled_plugins() == ()
    assert env.plugin_modules() == ()
    assert env.probe_timeout_s() == 1.0
    assert env.log_level() is None


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("TRUE", True), (" on ", True), ("0", False), ("no", False)]
)
def test_flags(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("FIB_NO_PLUGINS", text)
    assert env.no_plugins() is value


def test_a_flag_that_is_neither_true_nor_false_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_STRICT_PLUGINS", "maybe")
    with pytest.raises(ValueError, match="FIB_STRICT_PLUGINS='maybe'"):
        env.strict_plugins()


def test_paths_expand_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", "~/x")
    assert env.cache_path() == Path.home() / "x"


def test_the_folder_of_the_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert env.lock_path() is None
    monkeypatch.setenv("FIB_LOCK_PATH", "")
    assert env.lock_path() is None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_LOCK_PATH", "locks")
    assert env.lock_path() == tmp_path / "locks"


def test_relative_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", "x/y")
    assert env.cache_path() == tmp_path / "x" / "y"


@pytest.mark.parametrize(
    ("text", "jobs"), [("", None), ("3", 3), (" 12 ", 12), ("0", None), ("-1", None), ("x", None)]
)
def test_how_many_compilers_at_once(
    monkeypatch: pytest.MonkeyPatch, text: str, jobs: int | None
) -> None:
    monkeypatch.setenv("MAX_JOBS", text)
    assert env.max_jobs() == jobs


def test_an_empty_path_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_DATASET_PATH", "")
    assert env.dataset_path().name == "dataset"


def test_lists_drop_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_DISABLE_PLUGINS", " a, ,b,")
    assert env.disabled_plugins() == ("a", "b")


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "soon"])
def test_a_probe_timeout_must_be_positive(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FIB_PROBE_TIMEOUT_S", text)
    with pytest.raises(ValueError, match="FIB_PROBE_TIMEOUT_S"):
        env.probe_timeout_s()


def uses_of_the_environment(path: Path) -> list[str]:
    """Reads of FIB_* variables; what a child process is given is another matter."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            continue
        name = ast.unparse(node) if isinstance(node, (ast.Call, ast.Subscript)) else ""
        if "FIB_" in name and (name.startswith(("os.environ.get(", "os.getenv(", "os.environ["))):
            found.append(f"{path.name}:{node.lineno}")
    return found


def test_only_env_reads_the_environment() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "env.py"]
    assert [use for path in others for use in uses_of_the_environment(path)] == []


def test_every_variable_is_documented() -> None:
    source = (PACKAGE / "env.py").read_text(encoding="utf-8")
    for variable in env.VARIABLES:
        assert source.count(f'"{variable.name}"') >= 2, variable.name
        assert variable.meaning


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.cpu_threads() is None
    monkeypatch.setenv("FIB_CPU_THREADS", "3")
    assert env.cpu_threads() == 3


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "100000"])
def test_a_number_of_threads_must_be_one(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FIB_CPU_THREADS", text)
    with pytest.raises(ValueError, match="FIB_CPU_THREADS"):
        env.cpu_threads()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        (" ", ()),
        ("9.0a", ("9.0a",)),
        ("8.0, 9.0a;10.0f 12.0+PTX", ("8.0", "9.0a", "10.0f", "12.0+PTX")),
    ],
)
def test_architectures(monkeypatch: pytest.MonkeyPatch, text: str, names: tuple[str, ...]) -> None:
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", text)
    assert env.cuda_arch_list() == names


@pytest.mark.parametrize("text", ["sm_90", "90", "9", "9.0A", "Hopper", "9.0 -x", "9.0b"])
def test_what_is_no_architecture(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", text)
    with pytest.raises(ValueError, match="FIB_CUDA_ARCH_LIST") as caught:
        env.cuda_arch_list()
    assert repr(text.split()[-1]) in str(caught.value)


def test_visible_devices_may_be_none_or_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert env.cuda_visible_devices() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert env.cuda_visible_devices() == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, GPU-x")
    assert env.cuda_visible_devices() == ("1", "GPU-x")


def test_the_order_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert env.cuda_device_order() == "FASTEST_FIRST"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert env.cuda_device_order() == "PCI_BUS_ID"


def test_folders_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", "~/cuda")
    assert env.library_roots("CUDA_HOME", "CUDA_PATH") == [("CUDA_HOME", Path.home() / "cuda")]


def test_variables_of_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in env.compiler_variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("CPATH", "/x")
    monkeypatch.setenv("LIBRARY_PATH", "")
    monkeypatch.setenv("CXX", " g++ ")
    assert env.compiler_variables() == {"CPATH": "/x"}
    assert env.compiler_command("CXX") == "g++"


def test_how_datasets_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.fsync_wanted()
    assert not env.soft_dataset_locks()
    monkeypatch.setenv("FIB_FSYNC", " Never ")
    monkeypatch.setenv("FIB_DATASET_LOCK", "soft")
    assert not env.fsync_wanted()
    assert env.soft_dataset_locks()


@pytest.mark.parametrize(
    ("name", "read"),
    [("FIB_FSYNC", env.fsync_wanted), ("FIB_DATASET_LOCK", env.soft_dataset_locks)],
)
def test_other_ways_to_write_are_refused(monkeypatch: pytest.MonkeyPatch, name, read) -> None:
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(ValueError, match=f"{name}='maybe'; allowed are"):
        read()
