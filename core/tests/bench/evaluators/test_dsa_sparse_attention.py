"""Sparse attention: every output counts, and so does every selected token."""

from __future__ import annotations

import math

import pytest
import torch

NUMERICAL = "INCORRECT_NUMERICAL"


def attend(inputs, definition, **changes):
    """Compute the reference on changed inputs: what a kernel with a certain defect gives."""
    names = list(definition.inputs)
    given = dict(zip(names, inputs, strict=True)) | changes
    space = {}
    exec(definition.reference, space)
    return list(space["run"](*(given[name] for name in names)))


def without(selected, row):
    """Leave out the first token of a row's selection."""
    fewer = selected.clone()
    fewer[row, 0] = -1
    return fewer


def test_it_is_found_by_what_the_definition_is(attention):
    assert attention.evaluator.name == "dsa_sparse_attention"
    found = attention.check(attention.right())
    assert found.passed
    assert found.correctness.extra["relative_rms_error"] == 0.0


def test_rounding_of_a_real_kernel_passes(attention):
    q_nope, q_pe, *_, scale = attention.trial.inputs
    scaled = (q_nope * scale).bfloat16(), (q_pe * scale).bfloat16()
    changes = {"q_nope": scaled[0], "q_pe": scaled[1], "sm_scale": 1.0}
    outputs = attend(attention.trial.inputs, attention.definition, **changes)
    assert attention.check(outputs).passed


@pytest.mark.parametrize("which", [0, 1])
def test_each_output_alone_can_fail(attention, which):
    outputs = attention.right()
    outputs[which][0] += 0.5
    found = attention.check(outputs)
    assert found.status == NUMERICAL
    assert f"'{list(attention.definition.outputs)[which]}'" in found.message
    assert attention.check_timed(outputs).status == NUMERICAL


def test_both_outputs_are_needed(attention):
    assert attention.check(attention.right()[:1]).status == "INCORRECT_SHAPE"
    assert attention.check(attention.right()[1:]).status == "INCORRECT_SHAPE"


@pytest.mark.parametrize("row", [0, 1, 3])
def test_a_single_token_that_is_left_out_is_found(attention, row):
    fewer = without(attention.trial.inputs[4], row)
    outputs = attend(attention.trial.inputs, attention.definition, sparse_indices=fewer)
    found = attention.check(outputs)
    assert found.status == NUMERICAL
    # and by each output for itself, however small it is beside the tolerance
    right = attention.right()
    attention.configured(atol=1.0)
    assert not attention.check([outputs[0], right[1]]).passed
    assert not attention.configured(atol=1e-2).check([right[0], outputs[1]]).passed


def test_small_outputs_are_not_within_tolerance_for_being_small(attention):
    scaled = [*attention.trial.inputs]
    scaled[2] = scaled[2] * 1e-3
    trial = type(attention.trial)(0, 7, scaled, attend(scaled, attention.definition))
    right = [each.clone() for each in trial.expected]
    assert attention.check(right, trial=trial).passed
    wrong = [right[0] * 1.1, right[1]]
    found = attention.check(wrong, trial=trial)
    assert found.status == NUMERICAL
    assert "of the RMS of what is expected" in found.message


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

    def test_natural_logarithms_are_wrong(self, attention):
        output, lse = attention.right()
        assert attention.check([output, lse * math.log(2.0)]).status == NUMERICAL


def test_rows_without_a_selection_are_as_the_reference_has_them(attention):
    output, lse = attention.right()
    output[2, 0, 0] = 0.004  # within any tolerance
    found = attention.check([output, lse])
    assert found.status == NUMERICAL
    assert "'output' differs where nothing is selected" in found.message


def test_the_limit_can_be_set(attention):
    output, lse = attention.right()
    output = (output.float() * 1.015).to(output.dtype)
    assert attention.configured(rtol=0.05).check([output, lse]).passed
    tight = attention.configured(rtol=0.05, extra={"dsa_relative_rms": 0.01})
    assert not tight.check([output, lse]).passed


@pytest.mark.parametrize(
    "defect",
    [
        {"sm_scale": 0.2},
        {"q_pe": None},
        {"kpe_cache": None},
        {"ckv_cache": None},
    ],
    ids=lambda defect: next(iter(defect)),
)
def test_attention_that_forgets_a_part_fails(attention, defect):
    given = dict(zip(attention.definition.inputs, attention.trial.inputs, strict=True))
    changes = {
        name: torch.zeros_like(given[name]) if value is None else value
        for name, value in defect.items()
    }
    outputs = attend(attention.trial.inputs, attention.definition, **changes)
    assert attention.check(outputs).status == NUMERICAL
