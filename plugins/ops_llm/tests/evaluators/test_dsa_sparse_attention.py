"""Sparse attention: every output counts, and so does every selected token."""

import math

import pytest

NUMERICAL = "INCORRECT_NUMERICAL"


def attend(inputs, definition, **changes):
    """Compute the reference on changed inputs: what a kernel with a certain defect gives."""
    names = list(definition.inputs)
    given = dict(zip(names, inputs, strict=True)) | changes
    space = {}
    exec(definition.reference, space)
    return list(space["run"](*(given[name] for name in names)))


def test_rounding_of_a_real_kernel_passes(attention):
    q_nope, q_pe, *_, scale = attention.trial.inputs
    scaled = (q_nope * scale).bfloat16(), (q_pe * scale).bfloat16()
    changes = {"q_nope": scaled[0], "q_pe": scaled[1], "sm_scale": 1.0}
    outputs = attend(attention.trial.inputs, attention.definition, **changes)
    assert attention.check(outputs).passed


@pytest.mark.parametrize("row", [0, 1, 3])
def test_a_single_token_that_is_left_out_is_found(attention, row):
    fewer = attention.trial.inputs[4].clone()
    fewer[row, 0] = -1
    outputs = attend(attention.trial.inputs, attention.definition, sparse_indices=fewer)
    assert attention.check(outputs).status == NUMERICAL
    assert attention.check_timed(outputs).status == NUMERICAL
    # and by each output for itself, however small it is beside the tolerance
    right = attention.right()
    attention.configured(atol=1.0)
    assert not attention.check([outputs[0], right[1]]).passed
    assert not attention.configured(atol=1e-2).check([right[0], outputs[1]]).passed


class TestLogSumExp:
    def test_only_its_absolute_error_counts(self, attention):
        attention.configured(rtol=0.5, atol=1e-2)
        output, lse = attention.right()
        assert attention.check([output, lse + 0.005]).passed
        found = attention.check([output, lse + 0.05])
        assert found.status == NUMERICAL
        assert "'lse'" in found.message

    def test_it_is_minus_infinity_where_nothing_is_selected_and_nowhere_else(self, attention):
        output, lse = attention.right()
        assert bool(lse[2].isneginf().all())
        for value in (-1e30, 0.0, math.inf, math.nan):
            changed = lse.clone()
            changed[2] = value
            assert attention.check([output, changed]).status == NUMERICAL
        changed = lse.clone()
        changed[0, 0] = -math.inf
        assert attention.check([output, changed]).status == NUMERICAL
        swapped = lse[[2, 1, 0, 3]]
        assert attention.check([output, swapped]).status == NUMERICAL


def test_rows_without_a_selection_are_as_the_reference_has_them(attention):
    output, lse = attention.right()
    output[2, 0, 0] = 0.004  # within any tolerance
    found = attention.check([output, lse])
    assert found.status == NUMERICAL
    assert "'output' differs where nothing is selected" in found.message
