"""What needs no cluster: registration, messages, contents and fitness."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from fib_executor_ray import FleetSettings, judge
from fib_executor_ray.contents import DriverContents, NodeStore, digest_of
from fib_executor_ray.fitness import Fitness, memory_errors
from fib_executor_ray.wire import (
    pack_config,
    pack_error,
    pack_outcome,
    unpack_config,
    unpack_error,
    unpack_outcome,
)
from fib_tests.scaled_add import DEFINITION
from fib_tests.serving import solution
from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.builds import outcome_of
from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateFailed,
    Compiled,
    Confinement,
)
from flashinfer_bench.bench.plan import Build
from flashinfer_bench.data import Definition, Solution
from flashinfer_bench.data.json_codec import to_json
from flashinfer_bench.errors import BlobError, CapabilityError, DataError, RunnerError
from flashinfer_bench.testing import PluginCase, PluginConformance


class TestPlugin(PluginConformance):
    @pytest.fixture
    def case(self):
        return PluginCase(plugin="fib_executor_ray", installed=False)


def test_settings_arrive_with_their_layers(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(
        "iterations: 7\nstop_rule: fixed\nop_type_config: {op: {rtol: 0.5, extra: {a: 1}}}\n"
        "definition_config: {scaled_add_h8: {iterations: 9, atol: 0.25}}\n"
    )
    config = BenchmarkConfig.from_yaml(path, num_trials=2, atol=0.125, sandbox="strict").seeded()
    arrived = unpack_config(json.loads(json.dumps(pack_config(config))))
    definition = Definition.model_validate(DEFINITION)
    assert arrived.resolve_eval_config(definition) == config.resolve_eval_config(definition)
    assert arrived.resolve_eval_config(definition).iterations == 9
    assert (arrived.seed, arrived.sandbox) == (config.seed, "strict")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CapabilityError("no nvcc", hint="install it"), CapabilityError),
        (BlobError("torn"), DataError),
        (RunnerError("the reference failed"), RunnerError),
    ],
)
def test_errors_arrive_as_what_matters(error, kind):
    arrived = unpack_error(json.loads(json.dumps(pack_error(error))), "node-a")
    assert type(arrived) is kind
    assert (arrived.message, arrived.hint) == (f"node-a: {error.message}", error.hint)


@pytest.mark.parametrize(
    "error",
    [
        None,
        CandidateFailed(
            "BuildError: no", stage="compile", kind="BuildError", traceback="1", about="build"
        ),
        CandidateCrashed("killed", stage="compile", exit_code=-9),
    ],
)
def test_outcomes_of_builds_arrive(error):
    build = Build(Definition.model_validate(DEFINITION), Solution.model_validate(solution()))
    outcome = outcome_of(build, builder="c", fresh=True, seconds=1.5, error=error, output="text")
    arrived = unpack_outcome(build, pack_outcome(outcome))
    assert (arrived.state, arrived.reason, arrived.log) == (
        outcome.state,
        outcome.reason,
        outcome.log,
    )
    assert type(arrived.error) is type(error)


def test_contents_travel_once_to_each_node(tmp_path):
    blob = tmp_path / "x.bin"
    blob.write_bytes(bytes(range(256)) * 1000)
    definition = Definition.model_validate(DEFINITION)
    contents = DriverContents(put=lambda data: data)
    digests = [contents.record(definition), contents.file(blob)]
    arrived = []
    for node in ("a", "b", "a"):
        store = NodeStore(tmp_path / node)

        def missing(paths, store=store):
            assert set(paths) == set(digests)
            return [one for one in paths if not store.has(one)]

        def keep(digest, chunks, store=store):
            arrived.append(digest)
            store.add(digest, chunks)

        contents.send(node, digests, missing, keep)
        store.provide({"blob/x.bin": digests[1]})
        assert (store.root / "blob" / "x.bin").read_bytes() == blob.read_bytes()
        store.close()
        assert not store.root.exists()
    assert sorted(arrived) == sorted(digests * 2)
    # A node that is started again says itself what it still has.
    contents.forget("a")
    contents.send("a", digests, lambda paths: [], keep)
    assert len(arrived) == 4


def test_a_node_takes_what_it_shares_from_there_and_nothing_else_under_that_name(tmp_path):
    store = NodeStore(tmp_path / "node")
    shared = tmp_path / "shared"
    shared.write_bytes(b"content")
    assert store.add_file(digest_of(b"content"), shared)
    assert store.read(digest_of(b"content")) == b"content"
    assert not store.add_file(digest_of(b"other"), shared)
    assert not store.add_file(digest_of(b"other"), tmp_path / "nothing")
    with pytest.raises(RunnerError, match="what arrived is not"):
        store.add(digest_of(b"other"), [b"con", b"tent"])
    assert not store.has(digest_of(b"other"))


def test_fitness_is_held_against_peers_of_the_same_hardware():
    fitness = Fitness()
    assert fitness.record("big", "a", 1.0) is None
    assert fitness.record("small", "z", 9.0) is None
    assert fitness.record("big", "b", 1.1) == pytest.approx(0.1)
    assert fitness.deviation("big", "a") == 0  # of two, the slower one is off
    assert fitness.record("big", "c", 1.0) == pytest.approx(1.0 / 1.05 - 1)
    fitness.forget("big", "b")
    assert fitness.deviation("big", "c") == 0
    assert FleetSettings().max_deviation is None


def test_it_is_said_that_nobody_looks_at_the_memory_of_gpus(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert memory_errors("cpu") == 0
    assert caplog.messages == []
    assert memory_errors("cuda:0") == 0
    assert "errors of the memory of GPUs are not looked at" in caplog.text


def test_compilers_see_nothing_of_what_a_node_keeps(monkeypatch):
    seen = []

    class Compiler:
        def confine(self, writable, *, hidden, timeout_s):
            seen.extend(hidden)
            return Confinement(("all",))

        def compile(self, definition, solution, *, timeout_s):
            return Compiled("c", fresh=True)

        def close(self):
            pass

    executor = SimpleNamespace(spawn_compiler=Compiler, close=lambda: None)
    monkeypatch.setattr(judge, "make_executor", lambda catalog, device: executor)
    given = {
        "config": pack_config(BenchmarkConfig.default()),
        "device": "cpu",
        "visible": None,
        "hidden": ["/cache/fleet", "/dataset/solutions"],
    }
    records = Definition.model_validate(DEFINITION), Solution.model_validate(solution())
    text = judge.compile_solution(*(to_json(one) for one in records), json.dumps(given))
    assert json.loads(text)["builder"] == "c"
    assert seen == given["hidden"]
