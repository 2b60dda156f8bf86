"""Cases: what is made where the author gives nothing, and the variants that are derived."""

from __future__ import annotations

import pytest

from flashinfer_bench.data import CompileOptions, Definition, RandomInput, ScalarInput, Workload
from flashinfer_bench.plugins import BuilderSpec
from flashinfer_bench.testing import (
    BuilderCase,
    EvaluatorCase,
    KeyBuilderCase,
    make_solution,
    sample_definition,
)
from flashinfer_bench.testing.builders import variants
from flashinfer_bench.testing.builders.caching import _damage
from flashinfer_bench.testing.builders.case import default_workload

MANY = {
    "name": "many",
    "op_type": "toy",
    "axes": {
        "a": {"type": "var"},
        "b": {"type": "var"},
        "c": {"type": "const", "value": 4},
        "hidden": {"type": "var"},
    },
    "inputs": {
        "x": {"shape": ["a", "c"], "dtype": "float16"},
        "count": {"shape": None, "dtype": "int32"},
        "flag": {"shape": None, "dtype": "bool"},
        "y": {"shape": ["b"], "dtype": "int64"},
    },
    "outputs": {"out": {"shape": ["a", "b"], "dtype": "float32"}},
    "reference": "def run(x, count, flag, y):\n    return x\n",
}


@pytest.fixture
def solution():
    sources = {"src/main.cu": "int main;", "src/helper.h": "#define A"}
    return make_solution(
        sample_definition(), sources, "src/main.cu::run", language="cuda", name="mine"
    )


class TestDefaultWorkload:
    def test_axes_differ_and_scalars_have_their_type(self):
        workload = default_workload(Definition.model_validate(MANY))
        assert workload.axes == {"a": 3, "b": 5, "hidden": 7}
        assert workload.inputs["x"] == RandomInput()
        assert workload.inputs["count"] == ScalarInput(value=3)
        assert workload.inputs["flag"].value is True

    def test_constraints_ask_for_a_workload(self):
        definition = Definition.model_validate({**MANY, "constraints": ["a == 2 * b"]})
        with pytest.raises(ValueError, match=r"a == 2 . b.*: give the case a workload, or inputs"):
            default_workload(definition)


@pytest.mark.torch
class TestBuilderCase:
    def case(self, solution, **fields):
        given = {"record": "a:B", "definition": sample_definition(), "solution": solution}
        return BuilderCase(**given | fields)

    def test_inputs_are_new_objects_with_the_same_values(self, solution):
        case = self.case(solution)
        one, other = case.make_inputs(), case.make_inputs()
        assert one[0].equal(other[0])
        assert one[0].data_ptr() != other[0].data_ptr()
        assert one[2] == 0.5

    def test_outputs_are_poisoned_and_have_the_sizes_of_the_inputs(self, solution):
        case = self.case(solution)
        (out,) = case.make_outputs(case.make_inputs())
        assert tuple(out.shape) == (3, 8)
        assert out.isnan().all()

    def test_inputs_of_one_s_own(self, solution):
        import torch

        case = self.case(solution, inputs=lambda: (torch.ones(2, 8), torch.ones(2, 8), 1.0))
        (out,) = case.make_outputs(case.make_inputs())
        assert tuple(out.shape) == (2, 8)

    def test_a_workload_of_one_s_own(self, solution):
        workload = default_workload(sample_definition()).model_copy(update={"axes": {"tokens": 9}})
        case = self.case(solution, workload=workload)
        assert tuple(case.make_outputs(case.make_inputs())[0].shape) == (9, 8)

    def test_record_or_factory(self, solution):
        case = self.case(solution)
        assert (case.factory, case.spec, case.compiles) == ("a:B", None, False)
        record = BuilderSpec(name="b", handles=[("cuda", None)], factory="c:D", compiles=True)
        case = self.case(solution, record=record)
        assert (case.factory, case.spec, case.compiles) == ("c:D", record, True)


@pytest.mark.torch
class TestOtherCases:
    def test_key_builders_get_a_workload_for_each_axis_that_inputs_show(self):
        case = KeyBuilderCase(record="a:B", definition=Definition.model_validate(MANY))
        axes = [workload.axes for workload in case.all_workloads()]
        assert axes == [
            {"a": 3, "b": 5, "hidden": 7},
            {"a": 48, "b": 5, "hidden": 7},
            {"a": 3, "b": 80, "hidden": 7},
        ]
        given = (Workload(axes={"a": 1}, inputs={}, uuid="u"),)
        case = KeyBuilderCase(record="a:B", definition=case.definition, workloads=given)
        assert case.all_workloads() == list(given)

    def test_evaluators_get_trials_of_the_reference(self):
        case = EvaluatorCase(record="a:B", definition=sample_definition())
        one, same, other = case.trial(), case.trial(), case.trial(1)
        x, y, scale = one.inputs
        assert one.expected[0].equal((x + y) * scale)
        assert one.expected[0].equal(same.expected[0])
        assert not one.expected[0].equal(other.expected[0])
        assert (one.index, other.index) == (0, 1)

    def test_the_reference_cannot_change_the_inputs_of_a_trial(self):
        record = sample_definition().model_dump(mode="json")
        record["reference"] = "def run(x, y, scale):\n    return x.add_(y).mul_(scale)\n"
        case = EvaluatorCase(record="a:B", definition=Definition.model_validate(record))
        trial = case.trial()
        assert trial.expected[0].equal((trial.inputs[0] + trial.inputs[1]) * trial.inputs[2])

    def test_settings_go_over_those_of_the_benchmark(self):
        plain = EvaluatorCase(record="a:B", definition=sample_definition()).config()
        case = EvaluatorCase(
            record="a:B", definition=sample_definition(), settings={"rtol": 0.5, "extra": {"k": 1}}
        )
        assert (case.config().rtol, case.config().extra) == (0.5, {"k": 1})
        assert case.config().atol == plain.atol


class TestVariants:
    def test_symbol(self, solution):
        changed = variants.with_symbol(solution, "other")
        assert changed.spec.entry_point == "src/main.cu::other"
        assert changed.sources == solution.sources

    def test_language(self, solution):
        assert variants.with_language(solution, variants.FOREIGN).spec.language == variants.FOREIGN

    def test_content(self, solution):
        changed = variants.with_entry_content(solution, "@@@")
        assert [source.content for source in changed.sources] == ["@@@", "#define A"]
        assert changed.name == solution.name
        assert changed.spec == solution.spec

    @pytest.mark.parametrize("path", ["../a", "/a", "b/../../a"])
    def test_unsafe_path(self, solution, path):
        changed = variants.with_unsafe_source(solution, path, "x")
        assert changed.sources[-1].path == path
        assert len(changed.sources) == 3
        assert len(solution.sources) == 2

    def test_an_unstated_convention_stays_unstated(self, solution):
        changed = variants.with_symbol(solution, "other")
        assert "destination_passing_style" not in changed.spec.model_fields_set


class TestOtherOptions:
    def case(self, solution, **given):
        definition = sample_definition()
        return BuilderCase(record="a.b:C", definition=definition, solution=solution, **given)

    def test_they_are_those_of_the_solution_and_a_define(self, solution):
        own = variants.with_options(solution, CompileOptions(cflags=["-O1"], ldflags=["-lm"]))
        options = self.case(own).options
        assert options.cflags == ["-O1", "-DFIB_CONFORMANCE_OTHER=1"]
        assert options.cuda_cflags == ["-DFIB_CONFORMANCE_OTHER=1"]
        assert options.ldflags == ["-lm"]
        assert own.spec.compile_options.cflags == ["-O1"]
        assert "ldflags" in self.case(own).options_text

    def test_the_author_can_give_others(self, solution):
        given = CompileOptions(ldflags=["--fast"])
        assert self.case(solution, other_options=given).options is given

    def test_the_solution_with_them_is_another(self, solution):
        other = variants.with_options(solution, self.case(solution).options)
        assert other.hash() != solution.hash()
        assert other.sources == solution.sources

    def test_a_definition_with_one_more_axis_takes_the_same_arguments(self):
        definition = sample_definition()
        other = variants.with_constant(definition)
        assert len(other.axes) == len(definition.axes) + 1
        assert (other.inputs, other.outputs) == (definition.inputs, definition.outputs)
        assert default_workload(other) == default_workload(definition)


@pytest.mark.parametrize("libraries", ["", "*.txt"])
def test_damage_is_done_to_libraries_and_does_not_show(tmp_path, libraries):
    (tmp_path / "a").mkdir()
    library, text = tmp_path / "a" / "x.so", tmp_path / "a" / "x.txt"
    library.write_bytes(b"\0" * 100)
    text.write_bytes(b"A" * 100)
    library.chmod(0o444)
    before = {path: path.read_bytes() for path in (library, text)}
    times = {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in before}
    assert _damage(tmp_path, libraries) == ["x.txt" if libraries else "x.so"]
    changed = [path.name for path in before if path.read_bytes() != before[path]]
    assert changed == ["x.txt" if libraries else "x.so"]
    assert {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in before} == times
    assert [len(path.read_bytes()) for path in before] == [100, 100]
