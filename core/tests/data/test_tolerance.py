"""Tolerances in definitions and workloads: optional, and invisible to readers that have none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import (
    Definition,
    OutputTolerance,
    Tolerance,
    Trace,
    Workload,
    from_json,
    to_json,
)
from flashinfer_bench.data.base import SchemaModel
from flashinfer_bench.data.tolerance import require_known_outputs
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


class OldWorkload(SchemaModel):
    """A workload as a release reads it that knows no tolerances."""

    axes: dict[str, int]
    inputs: dict[str, Any]
    uuid: str


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

    def test_one_output_stands_over_all(self) -> None:
        tolerance = Tolerance(atol=1.0, rtol=2.0, outputs={"lse": OutputTolerance(rtol=3.0)})
        assert tolerance.values_for("lse") == {"atol": 1.0, "rtol": 3.0}
        assert tolerance.values_for("other") == {"atol": 1.0, "rtol": 2.0}

    @given(tolerances, st.sampled_from(["c", "lse", "none"]))
    def test_what_is_set_for_an_output_holds(self, record: dict[str, Any], output: str) -> None:
        own = record.get("outputs", {}).get(output, {})
        shared = {name: value for name, value in record.items() if name != "outputs"}
        assert Tolerance.model_validate(record).values_for(output) == {**shared, **own}

    def test_unknown_keys_are_ignored(self) -> None:
        assert Tolerance.model_validate({"atol": 1, "allow_negative_inf": True}).atol == 1.0


OTHERS = {
    "max_atol": 0.01,
    "max_rtol": 0.02,
    "required_matched_ratio": 0.99,
    "max_error_cap": 0.5,
}


class TestOtherSpelling:
    def test_is_read(self) -> None:
        read = Tolerance.model_validate_json(json.dumps(OTHERS))
        assert read == Tolerance(
            atol=0.01, rtol=0.02, required_matched_ratio=0.99, max_error_cap=0.5
        )

    def test_is_written_in_our_own(self) -> None:
        written = json.loads(to_json(Tolerance.model_validate(OTHERS)))
        assert set(written) == {"atol", "rtol", "required_matched_ratio", "max_error_cap"}

    def test_also_for_single_outputs(self) -> None:
        read = Tolerance.model_validate({"outputs": {"c": {"max_atol": 3}}})
        assert read.values_for("c") == {"atol": 3.0}

    def test_our_own_name_counts_where_both_are_given(self) -> None:
        assert Tolerance.model_validate({"atol": 1.0, "max_atol": 2.0}).atol == 1.0
        assert Tolerance.model_validate({"max_atol": 2.0, "atol": 1.0}).atol == 1.0

    def test_the_record_is_not_modified(self) -> None:
        record = dict(OTHERS)
        Tolerance.model_validate(record)
        assert record == OTHERS

    def test_a_bad_value_is_refused_all_the_same(self) -> None:
        with pytest.raises(ValueError, match="greater than or equal to 0"):
            Tolerance.model_validate({"max_atol": -1})


class TestDefinitions:
    def test_round_trip(self, make: Any) -> None:
        tolerance = {"atol": 0.5, "outputs": {"c": {"rtol": 0.25}}}
        record = make.definition_record(tolerance=tolerance)
        definition = Definition.model_validate(record)
        assert definition.tolerance == Tolerance.model_validate(tolerance)
        assert json.loads(to_json(definition))["tolerance"] == tolerance
        assert from_json(to_json(definition), Definition) == definition

    @pytest.mark.parametrize("record", [{}, {"tolerance": None}])
    def test_none_is_not_written(self, make: Any, record: dict[str, Any]) -> None:
        definition = Definition.model_validate(make.definition_record(**record))
        assert definition.tolerance is None
        assert "tolerance" not in json.loads(to_json(definition))
        assert "tolerance" not in definition.model_dump(mode="json")

    def test_unknown_output_is_named_with_its_field(self, make: Any) -> None:
        record = make.definition_record(tolerance={"outputs": {"d": {"atol": 1}}})
        with pytest.raises(DataError, match="no output 'd'; it has c") as caught:
            from_json(json.dumps(record), Definition)
        assert caught.value.field == "tolerance.outputs.d"

    def test_a_bad_number_is_named_with_its_field(self, make: Any) -> None:
        record = make.definition_record(tolerance={"outputs": {"c": {"atol": -1}}})
        with pytest.raises(DataError) as caught:
            from_json(json.dumps(record), Definition)
        assert caught.value.field == "tolerance.outputs.c.atol"


class TestWorkloads:
    def test_round_trip(self, make: Any) -> None:
        record = make.workload_record(tolerance={"max_error_cap": 2.0})
        workload = Workload.model_validate(record)
        assert workload.tolerance == Tolerance(max_error_cap=2.0)
        assert json.loads(to_json(workload)) == record
        assert from_json(to_json(workload), Workload) == workload

    def test_in_the_line_of_a_dataset_none_is_not_written(self, make: Any) -> None:
        line = Trace(definition="d", workload=Workload.model_validate(make.workload_record()))
        assert line.is_workload_trace()
        written = json.loads(to_json(line, indent=None))
        assert written["solution"] is written["evaluation"] is None
        assert "tolerance" not in written["workload"]

    def test_in_the_line_of_a_dataset_only_what_is_set_is_written(self, make: Any) -> None:
        workload = Workload.model_validate(make.workload_record(tolerance={"atol": 1.0}))
        written = json.loads(to_json(Trace(definition="d", workload=workload), indent=None))
        assert written["workload"]["tolerance"] == {"atol": 1.0}

    def test_older_readers_take_it(self, make: Any) -> None:
        workload = Workload.model_validate(make.workload_record(tolerance={"atol": 1.0}))
        assert OldWorkload.model_validate_json(to_json(workload)).uuid == workload.uuid

    def test_a_derived_uuid_does_not_depend_on_it(self, make: Any) -> None:
        record = make.workload_record()
        del record["uuid"]
        plain = Trace.model_validate({"definition": "d", "workload": record})
        tolerant = {**record, "tolerance": {"atol": 1.0}}
        other = Trace.model_validate({"definition": "d", "workload": tolerant})
        assert other.workload.uuid == plain.workload.uuid
        assert other.workload.tolerance == Tolerance(atol=1.0)

    def test_unknown_outputs_are_refused_against_a_definition(self) -> None:
        tolerance = Tolerance(outputs={"y": OutputTolerance(), "z": OutputTolerance()})
        require_known_outputs(None, ["y"])
        require_known_outputs(tolerance, ["y", "z"])
        with pytest.raises(DataError, match="no output 'z'") as caught:
            require_known_outputs(tolerance, ["y"], field="workload.tolerance")
        assert caught.value.field == "workload.tolerance.outputs.z"
