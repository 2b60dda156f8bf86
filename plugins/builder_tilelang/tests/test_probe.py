"""What the probe says, in every situation that an environment may be in."""

import importlib.metadata

import pytest

from fib_builder_tilelang import probe as module
from fib_builder_tilelang.probe import probe

BOUNDS = ">=0.1.11,<0.1.13"


@pytest.fixture
def environment(monkeypatch):
    """Return a function that makes this environment look like another."""

    def arrange(*, needs=(f"apache-tvm-ffi{BOUNDS}",), **versions):
        installed = {"tilelang": "0.1.15", "apache-tvm-ffi": "0.1.12"} | versions
        monkeypatch.setattr(module, "find_spec", lambda name: object())
        monkeypatch.setattr(module, "version", installed.__getitem__)
        monkeypatch.setattr(module, "requires", lambda name: list(needs))

    return arrange


def test_what_is_installed_here():
    answer = probe()
    assert answer.ok, answer
    versions = [importlib.metadata.version(name) for name in ("tilelang", "apache-tvm-ffi")]
    assert answer.reason == f"tilelang {versions[0]}, apache-tvm-ffi {versions[1]}"


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
