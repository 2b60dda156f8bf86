"""What the probe says, in every situation that an environment may be in."""

from __future__ import annotations

import importlib.metadata

import pytest

from fib_builder_tilelang import probe as module
from fib_builder_tilelang.probe import probe

BOUNDS = ">=0.1.11,<0.1.13"


@pytest.fixture
def environment(monkeypatch):
    """Return a function that makes this environment look like another."""

    def arrange(*, missing=(), needs=(f"apache-tvm-ffi{BOUNDS}",), **versions):
        installed = {"tilelang": "0.1.15", "apache-tvm-ffi": "0.1.12"} | versions
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in missing else object())

        def version(name):
            if installed.get(name) is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return installed[name]

        monkeypatch.setattr(module, "version", version)
        monkeypatch.setattr(module, "requires", lambda name: version(name) and list(needs))

    return arrange


def write_distribution(folder, name, version, *, requires=()):
    """Make the metadata of an installed distribution."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name.replace('_', '-')}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_what_is_installed_here():
    answer = probe()
    assert answer.ok, answer
    versions = [importlib.metadata.version(name) for name in ("tilelang", "apache-tvm-ffi")]
    assert answer.reason == f"tilelang {versions[0]}, apache-tvm-ffi {versions[1]}"


def test_without_tilelang(environment):
    environment(missing=("tilelang",), tilelang=None)
    answer = probe()
    assert (answer.ok, answer.reason) == (False, "tilelang is not installed")
    assert answer.remedy == "pip install tilelang"


@pytest.mark.parametrize("found", ["0.1.15.post2", "0.1.13", "0.1.13rc1", "0.1.10", "1.0"])
def test_with_a_tvm_ffi_that_does_not_fit(environment, found):
    environment(**{"apache-tvm-ffi": found})
    answer = probe()
    assert not answer.ok
    assert answer.reason == (
        f"tilelang 0.1.15 needs apache-tvm-ffi {BOUNDS}, but {found} is installed"
    )
    assert answer.remedy == f"pip install 'apache-tvm-ffi{BOUNDS}'"


@pytest.mark.parametrize("found", ["0.1.11", "0.1.12", "0.1.12.post1", "0.1.12+local"])
def test_with_one_that_does(environment, found):
    environment(**{"apache-tvm-ffi": found})
    assert probe().ok


def test_without_tvm_ffi(environment):
    environment(**{"apache-tvm-ffi": None})
    answer = probe()
    assert not answer.ok
    assert answer.reason.endswith(f"needs apache-tvm-ffi {BOUNDS}, but it is not installed")


def test_without_torch(environment):
    environment(missing=("torch",))
    answer = probe()
    assert not answer.ok
    assert "torch is not installed" in answer.reason


@pytest.mark.parametrize(
    "needs",
    [
        (),
        ("apache-tvm-ffi",),
        ("apache-tvm-ffi (<0.2,>=0.1)",),
        ("apache-tvm-ffi<0.1.0; extra == 'old'", "numpy>99"),
        ("apache-tvm-ffi<0.1.0; python_version < '3'",),
        ("apache-tvm-ffi-tools<0.1.0",),
    ],
)
def test_other_releases_may_need_other_things(environment, needs):
    environment(needs=needs)
    assert probe().ok


def test_a_checkout_without_metadata(environment):
    environment(tilelang=None)
    assert probe().reason == "tilelang of unknown version, apache-tvm-ffi 0.1.12"


class TestInstalledMetadata:
    """The same with the files that pip leaves, in front of what is really installed."""

    CODE = (
        "from fib_builder_tilelang.probe import probe\n"
        "answer = probe()\n"
        "print(answer.ok, answer.reason, '|', answer.remedy)\n"
    )

    def test_a_newer_tvm_ffi(self, tmp_path, in_child):
        write_distribution(tmp_path, "apache_tvm_ffi", "0.1.15.post2")
        write_distribution(
            tmp_path, "tilelang", "0.1.15", requires=["apache-tvm-ffi<0.1.13,>=0.1.11"]
        )
        assert in_child(self.CODE, PYTHONPATH=str(tmp_path)) == (
            f"False tilelang 0.1.15 needs apache-tvm-ffi {BOUNDS}, but 0.1.15.post2 is installed "
            f"| pip install 'apache-tvm-ffi{BOUNDS}'\n"
        )

    def test_the_build_says_the_same_and_imports_nothing(self, tmp_path, in_child):
        write_distribution(tmp_path, "apache_tvm_ffi", "0.1.15.post2")
        code = (
            "import sys\n"
            "from fib_builder_tilelang.loading import load_tilelang\n"
            "try:\n    load_tilelang()\n"
            "except Exception as error:\n    print(type(error).__name__, error)\n"
            "print('tilelang' in sys.modules)\n"
        )
        printed = in_child(code, PYTHONPATH=str(tmp_path))
        assert printed.startswith("CapabilityError tilelang")
        assert "but 0.1.15.post2 is installed\n  hint: pip install 'apache-tvm-ffi" in printed
        assert printed.endswith("\nFalse\n")
