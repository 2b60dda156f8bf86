"""What adapters know of FlashInfer's signatures holds for each release that is supported."""

import functools
import importlib
import inspect
import json
from pathlib import Path

import pytest
import torch

from fib_adapters_flashinfer import fib_register_adapters
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.routing import resolve

HERE = Path(__file__).parent
SNAPSHOT = json.loads((HERE / "signatures.json").read_text(encoding="utf-8"))
FUNCTIONS = {
    path: {release: text for text, names in found.items() for release in names.split()}
    for path, found in SNAPSHOT["functions"].items()
}
RELEASES = SNAPSHOT["releases"]


def specs():
    """Every target in FlashInfer of every adapter that is written by hand."""
    found = []
    for record in fib_register_adapters():
        if record.name == "flashinfer.templates":  # what it knows it has from FlashInfer itself
            continue
        module, _, name = record.factory.partition(":")
        adapter = getattr(importlib.import_module(module), name)()
        found += [spec for spec in adapter.targets() if spec.path.startswith("flashinfer.")]
    return {spec.path: spec for spec in found}


SPECS = specs()


def parse(parameters):
    return inspect.signature(eval(f"lambda {parameters}: None", {"torch": torch}))


def as_text(signature):
    """Return parameters as source code, without annotations."""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))[1:-1]


def stand_in(text):
    """Return something with the signature that a release has."""

    def function():
        pass

    function.__signature__ = parse(text)
    return function


def described(path, release):
    """Return the parameters that a release has at a path, other names of methods followed."""
    text = FUNCTIONS[path][release]
    if not text.startswith("= "):
        return text
    owner = path.rpartition(".")[0]
    if text == "= plan":
        return FUNCTIONS[f"{owner}.plan"][release]
    assert text == "= functools.partialmethod(run, return_lse=True)"
    run = stand_in(FUNCTIONS[f"{owner}.run"][release])
    return as_text(inspect.signature(functools.partial(run, return_lse=True)))


# ------------------------------------------------------------------- adapters and each release


@pytest.mark.parametrize("release", RELEASES)
def test_each_adapter_supports_each_release(release):
    problems = {}
    for path, spec in SPECS.items():
        text = described(path, release)
        assert text != "absent", f"{path} is not in {release}"
        problem = spec.expects(stand_in(text)) if spec.expects else None
        if problem:
            problems[path] = problem
    assert not problems


@pytest.mark.parametrize("path", [path for path in SPECS if path.startswith("flashinfer.norm.")])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text.replace("weight", "gamma"), "'gamma', not 'weight'"),
        (lambda text: text.replace("1e-06", "1e-05"), "default of 'eps' is 1e-05, not 1e-06"),
        (lambda text: text.replace("weight, ", "weight, bias, "), "'bias', not 'eps'"),
        (lambda text: text.replace(", enable_pdl=None", ""), "no parameter 'enable_pdl'"),
        (lambda text: f"{text}, *, stream", "'stream' is new, and has no default"),
    ],
)
def test_an_unknown_signature_is_a_version_mismatch(path, change, problem):
    found = SPECS[path].expects(stand_in(change(described(path, RELEASES[-1]))))
    assert found.startswith("version mismatch: ")
    assert problem in found


@pytest.mark.parametrize("path", [path for path in SPECS if path.startswith("flashinfer.norm.")])
@pytest.mark.parametrize("more", [", stream=None", ", *, stream=None", ", **more"])
def test_what_is_new_and_may_be_left_out_does_not_matter(path, more):
    assert SPECS[path].expects(stand_in(described(path, RELEASES[-1]) + more)) is None


# --------------------------------------------------------------------- the release that is here


def real(path):
    """Return what a path leads to, as its class or module stores it; None if there is nothing."""
    try:
        return resolve(path).found
    except CapabilityError:
        return None


def test_the_installed_release_is_as_the_snapshot_says(flashinfer):
    release = flashinfer.__version__
    if release not in RELEASES:
        pytest.skip(f"flashinfer {release} is none of those in the snapshot")
    wrong = {}
    for path, releases in FUNCTIONS.items():
        said, found = releases[release], real(path)
        if said == "absent":
            wrong.update({path: found} if found is not None else {})
        elif said == "= plan":
            owner = resolve(path).owner
            wrong.update({path: found} if found is not vars(owner)["plan"] else {})
        elif said.startswith("= functools.partialmethod(run"):
            assert isinstance(found, functools.partialmethod)
            assert (found.args, found.keywords) == ((), {"return_lse": True})
        elif as_text(inspect.signature(found)) != as_text(parse(said)):
            wrong[path] = as_text(inspect.signature(found))
    assert not wrong
