"""What the checks of a dataset find."""

import pytest

from flashinfer_bench.validate import validate_dataset


def findings(maker, check):
    """Return the findings of one check."""
    return [f for f in validate_dataset(maker.root).findings if f.check == check]


def only(maker, check):
    """Return the finding of a check that has one."""
    (finding,) = findings(maker, check)
    return finding


@pytest.fixture
def defined(maker):
    """A dataset with the definition ``double`` and a solution."""
    maker.definition()
    maker.solution()
    return maker
