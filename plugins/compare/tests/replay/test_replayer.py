"""Seeds and settings come back exactly; seeds are told only when nobody can use them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_compare.origin import recorded_settings
from fib_compare.replayer import (
    NotReproducible,
    RecordedConfig,
    Replay,
    Verdict,
    _with_fresh,
    recipe_of,
)
from fib_compare.targets import Target
from fib_judge.records import seed_commitment
from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig
from flashinfer_bench.bench.session import PersistentRunner
from flashinfer_bench.data import EvaluationStatus, Trace
from flashinfer_bench.errors import ConfigError

# Prints what each call sees.
WATCHER = """
def run(x):
    x = x.double()
    print(f'{float(x.abs().sum()):.9f} {float(x.sum()):.9f}')
    x = x.float()
    return x * 2
"""


@pytest.fixture
def run(problems, executor, catalog):
    """Evaluates solutions with a fake executor."""
    definition, workload = problems.definition(), problems.workload(uuid="w")

    def run(*solutions, seeds=(None, None), **options):
        values = {"iterations": 8, "warmup_runs": 1, "num_trials": 2, "seed": 5, "sandbox": "off"}
        config = BenchmarkConfig.default(**{**values, **options})
        with PersistentRunner("cpu", executor=executor, catalog=catalog) as runner:
            method = runner.measurement(config)
            method.timed_seed, method.reference_seed = seeds
            return list(runner.run_workload(definition, workload, solutions, config).values())

    return run


def extra(evaluation):
    assert evaluation.provenance is not None
    return evaluation.provenance.extra


class TestSeeds:
    def test_only_the_last_solution_tells_what_all_were_checked_with(self, run, problems):
        names = ("a", "b", "c")
        first, second, third = run(*(problems.good(name) for name in names))
        assert "reference_seed" not in extra(first)
        assert "reference_seed" not in extra(second)
        seed = extra(third)["reference_seed"]
        assert {extra(one)["checks_id"] for one in (first, second, third)} == {
            seed_commitment(seed)
        }

    @pytest.mark.parametrize("lost", [0, 1])
    def test_both_seeds_matter(self, run, problems, lost):
        solution = problems.solution(WATCHER, "watcher")
        (first,) = run(solution)
        seeds = [extra(first)["rotation_seed"], extra(first)["reference_seed"]]
        seeds[lost] += 1
        (again,) = run(solution, seeds=seeds)
        assert again.log != first.log


class TestRecipe:
    @pytest.fixture
    def recorded(self, run, problems):
        """A dataset with the traces of two solutions."""
        solutions = [problems.good("a"), problems.good("b")]
        dataset = problems.dataset(*solutions)
        workload = problems.workload(uuid="w")
        pairs = zip(("a", "b"), run(*solutions), strict=True)
        dataset.traces["double"] = [
            Trace(definition="double", workload=workload, solution=name, evaluation=evaluation)
            for name, evaluation in pairs
        ]
        return dataset

    def recipe(self, dataset, index=0):
        return recipe_of(dataset.traces["double"][index], dataset)

    def change(self, dataset, index=0, **values):
        provenance = dataset.traces["double"][index].evaluation.provenance
        provenance.extra.update(values.pop("extra", {}))
        for name, value in values.items():
            setattr(provenance, name, value)

    def test_the_seed_of_the_checks_is_found_beside(self, recorded):
        seeds = [self.recipe(recorded, index).reference_seed for index in (0, 1)]
        assert (
            seeds[0] == seeds[1] == extra(recorded.traces["double"][1].evaluation)["reference_seed"]
        )
        assert not any("not recorded" in one for one in self.recipe(recorded).notes)

    @pytest.mark.parametrize("told", ["x", True, -1, 2**63, 3, None, 1.0])
    def test_another_seed_is_not_taken(self, recorded, told):
        self.change(recorded, 1, extra={"reference_seed": told})
        recipe = self.recipe(recorded)
        assert recipe.reference_seed is None
        assert "a new one was used" in recipe.notes[0]

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            ({"seed": None}, "the seed was not recorded"),
            ({"seed": -3}, "the seed was not recorded"),
            ({"definition_hash": "0" * 16}, "definition 'double' has changed"),
            ({"extra": {"solution_hash": "0"}}, "solution 'a' has changed"),
            ({"extra": {"trust": ["x"]}}, "is invalid"),
        ],
    )
    def test_why_not(self, recorded, values, reason):
        self.change(recorded, **values)
        with pytest.raises(NotReproducible, match=reason):
            self.recipe(recorded)

    def test_a_solution_of_another_definition(self, recorded, problems):
        moved = problems.good("a", definition="triple")
        recorded.solutions = {"double": [], "triple": [moved]}
        with pytest.raises(NotReproducible, match="now belongs to definition 'triple'"):
            self.recipe(recorded)

    def test_another_workload_of_the_same_uuid(self, recorded, problems):
        """A record may claim a small problem to be the one that others ran."""
        trace = recorded.traces["double"][0]
        ours = trace.model_copy(update={"solution": None, "evaluation": None})
        recorded.workloads["double"] = [ours]
        assert not any("not recorded" in one for one in self.recipe(recorded).notes)
        axes = {name: value + 1 for name, value in trace.workload.axes.items()}
        trace.workload = trace.workload.model_copy(update={"axes": axes})
        with pytest.raises(NotReproducible, match="workload 'w' has changed since"):
            self.recipe(recorded)

    def test_a_record_does_not_take_the_confinement_away(self, recorded):
        self.change(recorded, settings={"sandbox": "off", "atol": 9.0})
        recipe = self.recipe(recorded)
        assert recipe.config.sandbox != "off"
        assert recipe.notes[0] == "as recorded: atol 9.0"
        assert "recorded sandbox: off" in recipe.notes[1]
        self.change(recorded, settings={"sandbox": "strict"})
        assert self.recipe(recorded).config.sandbox == "strict"


class TestSeedsThatAreNoSecret:
    """Whoever wrote the solution may have read the seeds in the trace, or chosen them."""

    def replayed(self, run, problems, fresh):
        (now,) = run(problems.good("a"))
        trace = Trace(
            definition="double", workload=problems.workload(), solution="a", evaluation=now
        )
        found = Replay(Target(trace), Verdict.REPRODUCED, (), (), "same", now)
        return _with_fresh(found, fresh(now), 1e9)

    def test_what_fails_with_fresh_ones_does_not(self, run, problems):
        def failed(now):
            return now.model_copy(update={"status": EvaluationStatus.RUNTIME_ERROR})

        found = self.replayed(run, problems, failed)
        assert found.verdict is Verdict.DRIFTED
        assert "only with the recorded seeds" in found.reasons[0]

    def test_other_values_have_other_errors(self, run, problems):
        def other(now):
            errors = now.correctness.model_copy(update={"max_absolute_error": 0.5})
            return now.model_copy(update={"correctness": errors})

        assert self.replayed(run, problems, other).verdict is Verdict.REPRODUCED


amounts = st.floats(0, 10, allow_nan=False)
settings_of_runs = st.fixed_dictionaries(
    {},
    optional={
        "atol": amounts,
        "rtol": amounts,
        "required_matched_ratio": st.floats(0.01, 1.0),
        "timeout_seconds": st.floats(1, 1000),
        "profile_baseline": st.booleans(),
        "use_isolated_runner": st.booleans(),
        "sandbox": st.sampled_from(["off", "auto"]),
        "evaluator": st.sampled_from(["default", "lowbit"]),
    },
)
extras = st.dictionaries(st.sampled_from("abc"), st.integers() | st.booleans(), max_size=3)


@given(settings_of_runs, extras, amounts)
def test_round_trip(problems, given_, extra, x):
    own = {"definition_config": {"double": EvalConfig(extra=extra, rtol=x)}}
    config = BenchmarkConfig.default(**given_, **own)
    problem = problems.definition(), problems.workload(uuid="w")
    told = json.loads(json.dumps(recorded_settings(config, *problem)))
    again = RecordedConfig.restored(told)
    assert again.resolve_eval_config(*problem) == config.resolve_eval_config(*problem)
    names = ("timeout_seconds", "profile_baseline", "use_isolated_runner", "sandbox", "evaluator")
    assert [getattr(again, name) for name in names] == [getattr(config, name) for name in names]
    assert recorded_settings(again, *problem) == told


@pytest.mark.parametrize(
    "changed",
    [
        {"timeout_seconds": -1},
        {"sandbox": "maybe"},
        {"tolerances": {"y": 3}},
        {"extra": 5},
        {"atol_by_dtype": 3},
    ],
)
def test_what_nobody_could_have_set_is_refused(problems, changed):
    with pytest.raises(ConfigError):
        RecordedConfig.restored(changed).resolve_eval_config(problems.definition())
