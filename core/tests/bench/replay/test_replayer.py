"""Seeds come back exactly, and are told only when nobody can use them any more."""

from __future__ import annotations

from typing import Any

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.judge.digests import seed_commitment
from flashinfer_bench.bench.replay.recorded import NotReproducible, recipe_of
from flashinfer_bench.bench.runner import PersistentRunner
from flashinfer_bench.data import Evaluation, Trace

# Prints what each call sees.
WATCHER = """
def run(x):
    print(round(float(x.double().abs().sum()), 9))
    return x * 2
"""


@pytest.fixture
def run(problems: Any, executor: Any, catalog: Any) -> Any:
    """Evaluates solutions with a fake executor."""
    definition, workload = problems.definition(), problems.workload(uuid="w")

    def run(*solutions: Any, seeds: Any = (None, None), **options: Any) -> list[Evaluation]:
        values = {"iterations": 8, "warmup_runs": 1, "num_trials": 2, "seed": 5, "sandbox": "off"}
        config = BenchmarkConfig.default(**{**values, **options})
        with PersistentRunner("cpu", executor=executor, catalog=catalog) as runner:
            runner.timed_seed, runner.reference_seed = seeds
            return list(runner.run_workload(definition, workload, solutions, config).values())

    return run


def extra(evaluation: Evaluation) -> dict[str, Any]:
    assert evaluation.provenance is not None
    return evaluation.provenance.extra


class TestSeeds:
    def test_only_the_last_solution_tells_what_all_were_checked_with(
        self, run: Any, problems: Any
    ) -> None:
        names = ("a", "b", "c")
        first, second, third = run(*(problems.good(name) for name in names))
        assert "reference_seed" not in extra(first)
        assert "reference_seed" not in extra(second)
        seed = extra(third)["reference_seed"]
        assert {extra(one)["checks_id"] for one in (first, second, third)} == {
            seed_commitment(seed)
        }

    def test_nothing_is_told_of_trusted_solutions(self, run: Any, problems: Any) -> None:
        (one,) = run(problems.good(), trust="off")
        assert not {"checks_id", "reference_seed", "rotation_seed"} & set(extra(one))

    def test_the_same_seeds_give_the_same_calls(self, run: Any, problems: Any) -> None:
        solution = problems.solution(WATCHER, "watcher")
        (first,) = run(solution)
        seeds = extra(first)["rotation_seed"], extra(first)["reference_seed"]
        (again,) = run(solution, seeds=seeds)
        assert again.log == first.log
        assert (extra(again)["rotation_seed"], extra(again)["reference_seed"]) == seeds

    @pytest.mark.parametrize("lost", [0, 1])
    def test_both_seeds_matter(self, run: Any, problems: Any, lost: int) -> None:
        solution = problems.solution(WATCHER, "watcher")
        (first,) = run(solution)
        seeds = [extra(first)["rotation_seed"], extra(first)["reference_seed"]]
        seeds[lost] += 1
        (again,) = run(solution, seeds=seeds)
        assert again.log != first.log


class TestRecipe:
    @pytest.fixture
    def recorded(self, run: Any, problems: Any) -> Any:
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

    def recipe(self, dataset: Any, index: int = 0) -> Any:
        traces = dataset.traces["double"]
        return recipe_of(traces[index], dataset, traces)

    def change(self, dataset: Any, index: int = 0, **values: Any) -> None:
        provenance = dataset.traces["double"][index].evaluation.provenance
        provenance.extra.update(values.pop("extra", {}))
        for name, value in values.items():
            setattr(provenance, name, value)

    def test_the_seed_of_the_checks_is_found_beside(self, recorded: Any) -> None:
        seeds = [self.recipe(recorded, index).reference_seed for index in (0, 1)]
        assert (
            seeds[0] == seeds[1] == extra(recorded.traces["double"][1].evaluation)["reference_seed"]
        )
        assert self.recipe(recorded).missing == ()

    @pytest.mark.parametrize("told", ["x", True, -1, 2**63, 3, None, 1.0])
    def test_another_seed_is_not_taken(self, recorded: Any, told: Any) -> None:
        self.change(recorded, 1, extra={"reference_seed": told})
        recipe = self.recipe(recorded)
        assert recipe.reference_seed is None
        assert "it was drawn anew" in recipe.missing[0]

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            ({"seed": None}, "the seed was not recorded"),
            ({"seed": -3}, "the seed was not recorded"),
            ({"definition_hash": "0" * 16}, "definition 'double' has changed"),
            ({"extra": {"solution_hash": "0"}}, "solution 'a' has changed"),
            ({"extra": {"trust": ["x"]}}, "is none"),
        ],
    )
    def test_why_not(self, recorded: Any, values: dict[str, Any], reason: str) -> None:
        self.change(recorded, **values)
        with pytest.raises(NotReproducible, match=reason):
            self.recipe(recorded)

    def test_what_an_older_release_did_not_record(self, recorded: Any) -> None:
        self.change(recorded, definition_hash=None)
        del extra(recorded.traces["double"][0].evaluation)["solution_hash"]
        text = "; ".join(self.recipe(recorded).missing)
        assert "hash of the definition" in text
        assert "hash of the solution" in text

    def test_a_solution_of_another_definition(self, recorded: Any, problems: Any) -> None:
        moved = problems.good("a", definition="triple")
        recorded.solutions = {"double": [], "triple": [moved]}
        with pytest.raises(NotReproducible, match="one of definition 'triple' today"):
            self.recipe(recorded)

    def test_no_definition(self, recorded: Any) -> None:
        recorded.definitions.clear()
        with pytest.raises(NotReproducible, match="definition 'double' is not in the dataset"):
            self.recipe(recorded)
