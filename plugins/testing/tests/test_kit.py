"""Cases, the variants that are derived from them, and what tells compilers from questions."""

import subprocess
import sys

import pytest

import fib_testing as kit
from fib_testing.child import is_compiler_run
from flashinfer_bench.data import Definition, RandomInput, ScalarInput, Workload

MANY = Definition.model_validate(
    {
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
)


def builder_case(**fields):
    definition = kit.sample_definition()
    solution = kit.make_solution(
        definition,
        {"src/main.cu": "int main;", "src/helper.h": "#define A"},
        "src/main.cu::run",
        language="cuda",
        compile_options={"cflags": ["-O1"], "ldflags": ["-lm"]},
    )
    given = {"record": "a:B", "definition": definition, "solution": solution}
    return kit.BuilderCase(**given | fields)


def test_every_name_can_be_had_without_torch_and_is_documented():
    code = (
        "import sys\nsys.modules['torch'] = None\nimport fib_testing as kit\n"
        "print(all(getattr(kit, name).__doc__ for name in kit.__all__))\n"
        "print(sorted({'numpy', 'triton'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n[]\n"


def test_every_test_of_every_suite_says_why_it_matters_and_what_to_do():
    for name in kit.__all__:
        suite = getattr(kit, name)
        tests = [test for test in dir(suite) if test.startswith("test_")]
        assert bool(tests) == name.endswith("Conformance")
        for test in tests:
            _, why, fix = getattr(suite, test).__doc__.split("\n\n")
            assert why.strip().startswith("Why it matters: "), test
            assert fix.strip().startswith("To do: "), test


@pytest.mark.torch
def test_default_inputs_have_small_different_sizes_and_are_new_each_time():
    case = builder_case()
    one, other = case.make_inputs(), case.make_inputs()
    assert one[0].equal(other[0])
    assert one[0].data_ptr() != other[0].data_ptr()
    assert one[2] == 0.5
    (out,) = case.make_outputs(one)
    assert tuple(out.shape) == (3, 8)
    assert out.isnan().all()
    larger = Workload(axes={"tokens": 9}, inputs=dict.fromkeys(("x", "y"), RandomInput()), uuid="u")
    assert tuple(builder_case(workload=larger).make_outputs([])[0].shape) == (9, 8)


@pytest.mark.torch
def test_key_builders_get_a_workload_for_each_axis_that_inputs_show():
    case = kit.KeyBuilderCase(record="a:B", definition=MANY)
    workloads = case.all_workloads()
    assert [workload.axes for workload in workloads] == [
        {"a": 3, "b": 5, "hidden": 7},
        {"a": 48, "b": 5, "hidden": 7},
        {"a": 3, "b": 80, "hidden": 7},
    ]
    assert workloads[0].inputs["count"] == ScalarInput(value=3)
    assert workloads[0].inputs["flag"].value is True


@pytest.mark.torch
def test_evaluators_get_trials_of_a_reference_that_cannot_change_the_inputs():
    record = kit.sample_definition().model_dump(mode="json")
    record["reference"] = "def run(x, y, scale):\n    return x.add_(y).mul_(scale)\n"
    case = kit.EvaluatorCase(
        record="a:B",
        definition=Definition.model_validate(record),
        settings={"rtol": 0.5, "extra": {"k": 1}},
    )
    one, other = case.trial(), case.trial(1)
    assert one.expected[0].equal((one.inputs[0] + one.inputs[1]) * one.inputs[2])
    assert not one.expected[0].equal(other.expected[0])
    assert (case.config().rtol, case.config().extra) == (0.5, {"k": 1})


@pytest.mark.parametrize(
    ("command", "builds"),
    [
        (["g++", "-O2", "-c", "kernel.cpp", "-o", "kernel.o"], True),
        (["/opt/bin/ninja", "-C", "build"], True),
        (["/usr/bin/ninja", "-j", "2", "-v"], True),
        ([sys.executable, "-m", "ninja"], True),
        ([], False),
        (["g++", "--version"], False),
        (["ninja", "-t", "deps"], False),
        (["make", "-v"], False),
        ([sys.executable, "-c", "print()"], False),
    ],
)
def test_a_command_that_builds_is_told_from_a_question(command, builds):
    assert is_compiler_run(command) == builds


@pytest.mark.parametrize("command", [["/opt/toolc", "a.toy"], [sys.executable, "-m", "toolc"]])
def test_a_compiler_that_the_case_names_is_recognised(command):
    assert not is_compiler_run(command)
    assert is_compiler_run(command, ["toolc"])
    assert not is_compiler_run(["toolc", "--version"], ["toolc"])
