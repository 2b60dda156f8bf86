from __future__ import annotations

import ast
from pathlib import Path

import pytest

import flashinfer_bench
from flashinfer_bench import env

PACKAGE = Path(flashinfer_bench.__file__).parent


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in (*(variable.name for variable in env.VARIABLES), "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_defaults():
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
    assert env.cuda_visible_devices() is None


@pytest.mark.parametrize(
    ("name", "text", "read", "value"),
    [
        ("FIB_NO_PLUGINS", "TRUE", env.no_plugins, True),
        ("FIB_NO_PLUGINS", " on ", env.no_plugins, True),
        ("FIB_NO_PLUGINS", "no", env.no_plugins, False),
        ("FIB_DISABLE_PLUGINS", " a, ,b,", env.disabled_plugins, ("a", "b")),
        ("FIB_CPU_THREADS", "3", env.cpu_threads, 3),
        ("FIB_SANDBOX_MEMORY_MB", "2", env.sandbox_memory_bytes, 2 << 20),
        ("FIB_CUDA_ARCH_LIST", " ", env.cuda_arch_list, ()),
        (
            *("FIB_CUDA_ARCH_LIST", "8.0, 9.0a;10.0f 12.0+PTX", env.cuda_arch_list),
            ("8.0", "9.0a", "10.0f", "12.0+PTX"),
        ),
        ("FIB_FSYNC", " Never ", env.fsync_wanted, False),
        ("FIB_DATASET_LOCK", "soft", env.soft_dataset_locks, True),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID", env.cuda_device_order, "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", "", env.cuda_visible_devices, ()),
        ("CUDA_VISIBLE_DEVICES", "1, GPU-x", env.cuda_visible_devices, ("1", "GPU-x")),
        ("FIB_CACHE_PATH", "~/x", env.cache_path, Path.home() / "x"),
        ("FIB_CACHE_PATH", "x/y", env.cache_path, Path.cwd() / "x/y"),
        ("FIB_LOCK_PATH", "locks", env.lock_path, Path.cwd() / "locks"),
        ("FIB_LOCK_PATH", "", env.lock_path, None),
    ],
)
def test_values(monkeypatch, name, text, read, value):
    monkeypatch.setenv(name, text)
    assert read() == value


@pytest.mark.parametrize(
    ("name", "read", "texts"),
    [
        ("FIB_STRICT_PLUGINS", env.strict_plugins, ["maybe"]),
        ("FIB_PROBE_TIMEOUT_S", env.probe_timeout_s, ["0", "-1", "inf", "nan", "soon"]),
        ("FIB_CPU_THREADS", env.cpu_threads, ["0", "-1", "many", "1.5", "100000"]),
        ("FIB_CUDA_ARCH_LIST", env.cuda_arch_list, ["sm_90", "90", "9.0A", "9.0 -x", "9.0b"]),
        ("FIB_FSYNC", env.fsync_wanted, ["maybe"]),
        ("FIB_DATASET_LOCK", env.soft_dataset_locks, ["maybe"]),
    ],
)
def test_what_is_no_value(monkeypatch, name, read, texts):
    for text in texts:
        monkeypatch.setenv(name, text)
        with pytest.raises(ValueError, match=f"{name}='{text}'"):
            read()


def uses_of_the_environment(path):
    """Reads of FIB_* variables; what a child process is given is another matter."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            continue
        name = ast.unparse(node) if isinstance(node, (ast.Call, ast.Subscript)) else ""
        if "FIB_" in name and (name.startswith(("os.environ.get(", "os.getenv(", "os.environ["))):
            found.append(f"{path.name}:{node.lineno}")
    return found


def test_only_env_reads_the_environment():
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "env.py"]
    assert [use for path in others for use in uses_of_the_environment(path)] == []


def test_every_variable_is_documented():
    source = (PACKAGE / "env.py").read_text(encoding="utf-8")
    for variable in env.VARIABLES:
        assert source.count(f'"{variable.name}"') >= 2, variable.name
        assert variable.meaning
