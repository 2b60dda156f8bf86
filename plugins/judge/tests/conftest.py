"""Candidates, most of them scripted, judged by the verified measurement."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import fib_judge
from fib_judge.evaluate import evaluate_solution
from fib_judge.records import VerifiedSession
from fib_judge.reference import prepare_baseline
from fib_judge.ring import Ring
from fib_tests.candidates import bench, definition_of, server_executor, solution_of
from fib_tests.rounds import session_with_rounds
from fib_tests.scripted import (
    cache_folder,
    evaluator,
    executor,
    problems,
    settings,
)
from fib_tests.scripted import catalog as core_catalog
from fib_tests.scripted import session as plain_session
from flashinfer_bench.bench.evaluators import DefaultEvaluator
from flashinfer_bench.bench.measurement import Task
from flashinfer_bench.compile import reference_solution
from flashinfer_bench.plugins import Catalog


class Lenient(DefaultEvaluator):
    """Has tolerances left as they are."""

    one_answer = False


@pytest.fixture
def session(plain_session):
    """``session(**changes)``: a run of the judge's."""
    own = ("ceilings", "clock_lock", "rotation_seed", "timed_seed")

    def make(**changes):
        more = {name: changes.pop(name) for name in own if name in changes}
        values = {"measurement": "verified", **changes}
        return VerifiedSession(**vars(plain_session(**values)), **more)

    return make


@pytest.fixture
def catalog(core_catalog):
    """What an installation with a Python builder and the judge would offer."""
    records = [entry.spec for entry in core_catalog]
    return Catalog.of(*records, *fib_judge.fib_register_measurements())


@pytest.fixture
def prepare(problems, session, settings, monkeypatch):
    """``prepare(reference, **changes)``: the baseline of a workload, by default of 4 rows."""
    # Its processes are scripted, as are their clocks: they wait for no core.
    monkeypatch.setattr(Ring, "waits_ms", lambda ring: (0.0, 0.0))

    def make(
        reference=None, *, n=4, workload=None, config=None, running=None, judged_by=None, **changes
    ):
        definition = problems.definition(**({"reference": reference} if reference else {}))
        task = Task(
            definition,
            workload or problems.workload(n=n, uuid="w"),
            reference_solution(definition),
            judged_by or Lenient(),
            settings(**{"processes": 1, **(config or {})}),
            None,
        )
        return prepare_baseline(running or session(**changes), task)

    return make


@pytest.fixture
def judging(problems, session, settings, prepare, evaluator, executor):
    """``judging(**usual)``: what evaluates a solution, given as source or object, as is usual."""

    def judging(*, config=None, tightened=True, **usual):
        def run(solution, *, running=None, evaluator=evaluator, **options):
            own = {**(config or {}), **options.pop("config", {})}
            given = {**usual, **options}
            kept = {name: given.pop(name) for name in ("reference", "n") if name in given}
            running = running or session(**given)
            judged_by = evaluator if tightened else None
            limit = running.config.model_copy(update={"timeout_seconds": 30.0})
            unhurried = replace(running, config=limit)  # the limit is for the solution
            made = prepare(running=unhurried, config=own, judged_by=judged_by, **kept)
            running.pool.clear()
            running.pool.settle()  # processes are numbered from here on
            executor.events.clear()
            if isinstance(solution, str):
                solution = problems.solution(solution)
            return evaluate_solution(running, solution, replace(made, evaluator=evaluator))

        return run

    return judging
