"""Tolerances in definitions and workloads: optional, and invisible to readers that have none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import Definition, Tolerance, Trace, Workload, from_json, to_json
from flashinfer_bench.errors import DataError

limits = st.fixed_dictionaries(
    {},
    optional={
        "atol": st.floats(0, 1e6),
        "rtol": st.floats(0, 1e6),
        "required_matched_ratio": st.floats(0, 1, exclude_min=True),
        "max_error_cap": st.floats(0, 1e6),
    },
)
tolerances = st.builds(
    lambda shared, outputs: {**shared, **({"outputs": outputs} if outputs else {})},
    limits,
    st.dictionaries(st.sampled_from(["c", "lse"]), limits, max_size=2),
)


class TestValues:
    @given(tolerances)
    def test_round_trip(self, record: dict[str, Any]) -> None:
        tolerance = Tolerance.model_validate(record)
        assert json.loads(to_json(tolerance)) == record
        assert from_json(to_json(tolerance), Tolerance) == tolerance

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("atol", -1e-9),
            ("rtol", float("nan")),
            ("atol", float("inf")),
            ("required_matched_ratio", 0.0),
            ("required_matched_ratio", 1.01),
            ("max_error_cap", -1.0),
            ("atol", "much"),
            ("outputs", {"": {}}),
            ("outputs", {"c": {"atol": -1}}),
            ("outputs", ["c"]),
        ],
    )
    def test_refused(self, field: str, value: Any) -> None:
        with pytest.raises(ValueError, match=field):
            Tolerance.model_validate({field: value})

    @given(tolerances, st.sampled_from(["c", "lse", "none"]))
    def test_what_is_set_for_an_output_holds(self, record: dict[str, Any], output: str) -> None:
        own = record.get("outputs", {}).get(output, {})
        shared = {name: value for name, value in record.items() if name != "outputs"}
        assert Tolerance.model_validate(record).values_for(output) == {**shared, **own}


class TestOtherSpelling:
    def test_is_read_and_written_in_our_own(self) -> None:
        record = {"max_atol": 0.01, "max_rtol": 0.02, "outputs": {"c": {"max_atol": 3}}}
        before = json.dumps(record)
        read = Tolerance.model_validate(record)
        assert json.dumps(record) == before
        expected = {"atol": 0.01, "rtol": 0.02, "outputs": {"c": {"atol": 3.0}}}
        assert json.loads(to_json(read)) == expected
        with pytest.raises(ValueError, match="greater than or equal to 0"):
            Tolerance.model_validate({"max_atol": -1})


class TestDefinitions:
    def test_unknown_output_is_named_with_its_field(self, make: Any) -> None:
        record = make.definition_record(tolerance={"outputs": {"d": {"atol": 1}}})
        with pytest.raises(DataError, match="no output 'd'; it has c") as caught:
            from_json(json.dumps(record), Definition)
        assert caught.value.field == "tolerance.outputs.d"


class TestWorkloads:
    @pytest.mark.parametrize("tolerance", [None, {"max_error_cap": 2.0}])
    def test_only_what_is_set_is_written_in_the_line_of_a_dataset(
        self, make: Any, tolerance: Any
    ) -> None:
        record = make.workload_record(**({} if tolerance is None else {"tolerance": tolerance}))
        line = Trace(definition="d", workload=Workload.model_validate(record))
        written = to_json(line, indent=None)
        expected = {"definition": "d", "workload": record, "solution": None, "evaluation": None}
        assert json.loads(written) == expected
        assert from_json(written, Trace) == line

    def test_a_derived_uuid_does_not_depend_on_it(self, make: Any) -> None:
        record = make.workload_record()
        del record["uuid"]
        plain = Trace.model_validate({"definition": "d", "workload": record})
        tolerant = {**record, "tolerance": {"atol": 1.0}}
        other = Trace.model_validate({"definition": "d", "workload": tolerant})
        assert other.workload.uuid == plain.workload.uuid
        assert other.workload.tolerance == Tolerance(atol=1.0)
