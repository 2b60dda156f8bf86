"""Mapping mode: one solution for each definition, whatever its calls come through."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

from flashinfer_bench.apply.api import apply, disable_apply, enable_apply  # noqa: E402
from flashinfer_bench.apply.apis import Api, Bound, UnroutableError, routed  # noqa: E402
from flashinfer_bench.apply.mapping import (  # noqa: E402
    MappingRuntime,
    WrappedCount,
    enable_folder,
    enable_mapping,
    stats,
)
from flashinfer_bench.data import Definition, Solution, TraceSet  # noqa: E402
from flashinfer_bench.errors import BuildError, ConfigError, DataError  # noqa: E402
from flashinfer_bench.integration.slots import board  # noqa: E402

ROWS = {"shape": ["rows", "hidden"], "dtype": "float32"}
WEIGHT = {"shape": ["hidden"], "dtype": "float32"}


@pytest.fixture(autouse=True)
def nothing_enabled(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "no-dataset"))
    for name in ("FIB_APPLY_PATH", "FIB_ENABLE_APPLY"):
        monkeypatch.delenv(name, raising=False)
    board.clear()
    yield
    board.clear()
    gc.collect()


def definition(name="norm_h8", hidden=8, **changes):
    return Definition.model_validate(
        {
            "name": name,
            "op_type": "norm",
            "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": hidden}},
            "inputs": {"x": ROWS, "weight": WEIGHT},
            "outputs": {"y": ROWS},
            "reference": "def run(x, weight):\n    return x * weight\n",
            **changes,
        }
    )


def solution(name="thrice", of="norm_h8", code="def run(x, weight):\n    return 3 * x\n", **spec):
    return Solution.model_validate(
        {
            "name": name,
            "definition": of,
            "author": "me",
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "destination_passing_style": False,
                **spec,
            },
            "sources": [{"path": "main.py", "content": code}],
        }
    )


KNOWN = TraceSet(definitions={"norm_h8": definition()})


def library():
    """Make a function of a library, and the wrapper that an adapter puts around it."""
    calls = []

    def norm(x, weight, eps=1e-6, *, out=None, enable_pdl=None):
        calls.append(x)
        if out is None:
            return -x
        return out.copy_(-x)

    api = Api.of_function(
        norm, "library.norm", definition_of=lambda args, kwargs: f"norm_h{args[0].shape[-1]}"
    )
    return routed(api, norm), calls


def rows(value=1.0, count=2, hidden=8, **options):
    return torch.full((count, hidden), float(value), **options)


W = torch.ones(8)


def thrice(x, weight):
    return 3 * x


def counts(name="library.norm"):
    found = stats()[name]
    return found["hit"], found["fallback"], found["error"]


class TestRouting:
    @pytest.mark.parametrize("dataset", [None, KNOWN])
    def test_a_call_of_the_definition_goes_to_the_callable(self, dataset):
        norm, calls = library()
        with enable_mapping({"norm_h8": thrice}, dataset=dataset):
            assert torch.equal(norm(rows(), W), rows(3))
            assert torch.equal(norm(rows(count=5), weight=W), rows(3, count=5))  # any size
            assert counts() == (2, 0, 0)
        assert calls == []
        assert torch.equal(norm(rows(), W), rows(-1))

    @pytest.mark.parametrize("dataset", [None, KNOWN])
    def test_a_call_of_another_goes_to_the_original(self, dataset):
        norm, calls = library()
        with enable_mapping({"norm_h8": thrice}, dataset=dataset) as handle:
            wide = rows(hidden=16)
            assert torch.equal(norm(wide, torch.ones(16)), -wide)
            assert norm(wide, torch.ones(16)) is not None
            assert handle.stats()["library.norm"] == {
                "hit": 0,
                "fallback": 2,
                "error": 0,
                "misses": {"not in the mapping": 2},
            }
        assert len(calls) == 2

    def test_a_callable_is_called_by_keyword(self):
        norm, _ = library()
        with enable_mapping({"norm_h8": lambda weight, x, **rest: x * 5}, dataset=KNOWN):
            assert torch.equal(norm(rows(), W), rows(5))

    def test_parameters_of_other_names_are_matched_by_position(self):
        def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None) -> torch.Tensor:
            raise AssertionError("the original must not be called")

        def my_rmsnorm(hidden_states, weight, eps=1e-6):
            x = hidden_states.float()
            y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
            return (y * weight.float()).to(hidden_states.dtype)

        api = Api.of_function(rmsnorm, definition_of=lambda args, kw: f"norm_h{args[0].shape[-1]}")
        norm = routed(api, rmsnorm)
        x = torch.randn(3, 8, dtype=torch.bfloat16)
        with enable_apply({"norm_h8": my_rmsnorm}):
            out = torch.empty_like(x)
            assert norm(x, W, out=out) is out
            assert torch.equal(out, my_rmsnorm(x, W))
            assert torch.equal(norm(x, W, 0.5), my_rmsnorm(x, W, 0.5))

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            ((1e-6,), {}),
            ((float("1e-6"), None), {}),
            ((), {"eps": 1e-6}),
            ((1e-6, None, True), {}),
            ((), {"enable_pdl": False}),
        ],
    )
    def test_defaults_may_be_given_in_any_way(self, args, kwargs):
        def rmsnorm(weight, x, eps=1e-6, out=None, enable_pdl=None):
            raise AssertionError("the original must not be called")

        norm = routed(Api.of_function(rmsnorm, definition_of=lambda *call: "norm_h8"), rmsnorm)
        with enable_mapping({"norm_h8": lambda x, weight: x * weight}, dataset=KNOWN):
            for _ in range(2):
                assert torch.equal(norm(W * 3, rows(), *args, **kwargs), rows(3))
                assert torch.equal(norm(x=rows(), weight=W * 3, **kwargs), rows(3))
                out = rows(0)
                assert norm(W * 3, rows(), 1e-6, out) is out

    def test_a_decorated_function(self):
        @apply("norm_h8")
        def norm(x, weight):
            return -x

        with enable_apply({"norm_h8": thrice}) as handle:
            assert torch.equal(norm(rows(), W), rows(3))
            (found,) = [each for name, each in handle.stats().items() if name.endswith("norm")]
            assert found["hit"] == 1
        assert torch.equal(norm(rows(), W), rows(-1))

    def test_a_decorated_function_with_a_resolver(self):
        @apply(lambda x, weight: f"norm_h{x.shape[1]}")
        def norm(x, weight):
            return -x

        with enable_apply({"norm_h8": thrice}):
            assert torch.equal(norm(rows(), W), rows(3))
            assert torch.equal(norm(rows(hidden=4), W), rows(-1, hidden=4))
            (found,) = stats().values()
            assert (found["hit"], found["fallback"]) == (1, 1)

    def test_a_decorated_method(self):
        class Layer:
            @apply("norm_h8")
            def norm(self, x, weight):
                return -x

        with enable_apply({"norm_h8": thrice}):
            assert torch.equal(Layer().norm(rows(), W), rows(3))

    @pytest.mark.parametrize("dataset", [None, KNOWN])
    def test_the_function_form(self, dataset):
        with enable_mapping({"norm_h8": thrice}, dataset=dataset) as handle:
            fallback = lambda x, weight: -x  # noqa: E731
            assert torch.equal(apply("norm_h8", (rows(), W), fallback=fallback), rows(3))
            named = {"x": rows(), "weight": W}
            assert torch.equal(apply("norm_h8", runtime_kwargs=named, fallback=fallback), rows(3))
            assert torch.equal(handle("norm_h8", (rows(), W)), rows(3))
            assert torch.equal(apply("norm_h4", (rows(), W), fallback=fallback), rows(-1))
            assert counts("apply('norm_h8')")[0] == 3

    def test_the_function_form_with_outputs_writes_to_them(self):
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
            y = rows(0)
            assert apply("norm_h8", (rows(), W, y), fallback=lambda *args: None) is None
            assert torch.equal(y, rows(3))

    def test_the_function_form_writes_back_in_place(self):
        place = definition(outputs={"y": {**ROWS, "param": "x"}})
        with enable_mapping({"norm_h8": thrice}, dataset=TraceSet(definitions={"norm_h8": place})):
            x = rows()
            assert apply("norm_h8", (x, W), fallback=lambda *args: None) is None
            assert torch.equal(x, rows(3))

    def test_without_a_fallback_there_is_an_error(self):
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN) as handle:
            with pytest.raises(RuntimeError, match="'norm_h4'"):
                handle("norm_h4", (rows(), W))
            with pytest.raises(RuntimeError, match="'norm_h8'"):
                handle("norm_h8", (rows(hidden=4), W))

    def test_a_resolver_may_be_given_to_the_handle(self):
        with enable_mapping({"norm_h8": thrice}) as handle:
            name = lambda x, weight: f"norm_h{x.shape[1]}"  # noqa: E731
            assert torch.equal(handle(name, (rows(), W)), rows(3))
            assert handle(lambda x, weight: None, (rows(), W), fallback=lambda *args: 7) == 7


class TestLifetime:
    def test_the_number_of_functions_is_returned(self):
        norm, _ = library()

        @apply("norm_h8")
        def mine(x, weight):
            return -x

        @apply("gemm")
        def other(a, b):
            return a

        before = len(board.slots())
        count = enable_apply({"norm_h8": thrice})
        assert isinstance(count, WrappedCount)
        assert isinstance(count, int)
        # Slots of other tests may be about: those of one definition alone do not count.
        assert 2 <= count < before
        assert enable_apply({"no_such_definition": thrice}) == count - 1
        assert norm is not None

    def test_enabling_again_replaces(self):
        norm, _ = library()
        enable_apply({"norm_h8": lambda x, weight: x * 5})
        enable_apply({"norm_h8": thrice})
        assert torch.equal(norm(rows(), W), rows(3))
        assert len(board.active) == 1
        disable_apply()
        assert torch.equal(norm(rows(), W), rows(-1))
        assert board.active == ()

    def test_an_empty_mapping_enables_nothing_and_replaces(self):
        enable_apply({"norm_h8": thrice})
        assert enable_apply({}) == 0
        assert board.active == ()

    def test_an_older_handle_does_not_disable_a_newer_mapping(self):
        norm, _ = library()
        older = enable_apply({"norm_h8": lambda x, weight: x * 5})
        enable_apply({"norm_h8": thrice})
        older.stop()
        assert torch.equal(norm(rows(), W), rows(3))

    def test_an_outer_body_has_its_mapping_back(self):
        norm, _ = library()
        with enable_apply({"norm_h8": thrice}):
            with enable_apply({"norm_h8": lambda x, weight: x * 5}):
                assert torch.equal(norm(rows(), W), rows(5))
            assert torch.equal(norm(rows(), W), rows(3))
        assert board.active == ()

    def test_a_body_ends_it_also_after_an_error(self):
        with pytest.raises(KeyError), enable_apply({"norm_h8": thrice}):
            raise KeyError
        assert board.active == ()

    def test_a_handle_can_be_entered_again(self):
        norm, _ = library()
        handle = enable_apply({"norm_h8": thrice})
        handle.stop()
        with handle:
            assert torch.equal(norm(rows(), W), rows(3))
        assert torch.equal(norm(rows(), W), rows(-1))

    def test_what_was_never_called_is_logged(self, caplog):
        norm, _ = library()
        with (
            caplog.at_level(logging.WARNING),
            enable_apply({"norm_h8": thrice, "rmsnorm_h8": thrice}),
        ):
            norm(rows(), W)
        (record,) = [r for r in caplog.records if "no call of" in r.getMessage()]
        assert "rmsnorm_h8" in record.getMessage()
        assert "norm_h8," not in record.getMessage()

    def test_statistics_end_with_the_mapping(self):
        assert stats() == {}
        norm, _ = library()
        with enable_apply({"norm_h8": thrice}) as handle:
            norm(rows(), W)
            assert stats() == handle.stats()
        assert stats() == {}

    def test_a_handle_is_pickled_as_the_number(self):
        count = enable_apply({"norm_h8": thrice})
        assert pickle.loads(pickle.dumps(count)) == int(count)

    def test_the_environment_names_a_folder(self, tmp_path, monkeypatch):
        folder = tmp_path / "chosen"
        for part, record in (("solutions", solution()), ("definitions", definition())):
            (folder / part).mkdir(parents=True)
            (folder / part / "one.json").write_text(record.model_dump_json(exclude_none=True))
        monkeypatch.setenv("FIB_APPLY_PATH", str(folder))
        norm, _ = library()
        with enable_apply():
            assert torch.equal(norm(rows(), W), rows(3))


class TestGuards:
    """With a definition known, what it does not describe goes to the original."""

    @pytest.mark.parametrize(
        ("args", "reason"),
        [
            ((rows(dtype=torch.float64), W), "dtype"),
            ((rows(hidden=16)[:, ::2], W), "layout"),
            ((rows(), torch.ones(8, requires_grad=True)), "grad"),
            ((torch.ones(1, 2, 8), W), "shape"),
        ],
    )
    def test_a_call_of_another_kind(self, args, reason):
        norm, calls = library()
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
            assert torch.equal(norm(*args), -args[0])
            found = stats()["library.norm"]
        assert (found["hit"], found["fallback"]) == (0, 1)
        assert found["misses"] == {reason: 1}
        assert len(calls) == 1

    @pytest.mark.parametrize("dataset", [None, KNOWN])
    def test_an_argument_that_the_solution_does_not_know(self, dataset):
        norm, _ = library()
        with enable_mapping({"norm_h8": thrice}, dataset=dataset):
            assert torch.equal(norm(rows(), W, 1e-6, enable_pdl=True), rows(3))
            assert torch.equal(norm(rows(), W, 1e-5), rows(-1))
            assert stats()["library.norm"]["misses"] == {"argument not in the definition": 1}

    def test_without_a_definition_a_callable_may_know_it(self):
        norm, _ = library()
        with enable_mapping({"norm_h8": lambda x, weight, eps: x + eps}):
            assert torch.equal(norm(rows(), W, 1.0), rows(2))

    def test_arguments_that_do_not_fit_raise_what_the_original_raises(self):
        norm, _ = library()
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
            with pytest.raises(TypeError, match="weight"):
                norm(rows())
            assert stats()["library.norm"]["misses"] == {"arguments": 1}

    def test_a_function_of_another_signature_is_left_alone(self, caplog):
        @apply("norm_h8")
        def norm(x):
            return -x

        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN), caplog.at_level(logging.WARNING):
            assert torch.equal(norm(rows()), rows(-1))
            assert torch.equal(norm(rows()), rows(-1))
            (found,) = stats().values()
        assert found["misses"] == {"signature": 2}
        told = [r.getMessage() for r in caplog.records if "input 'weight'" in r.getMessage()]
        assert len(told) == 1

    @pytest.mark.parametrize("dataset", [None, KNOWN])
    def test_a_solution_that_calls_the_function_itself_gets_the_original(self, dataset):
        norm, calls = library()

        def around(x, weight):
            return norm(x, weight) * 2

        with enable_mapping({"norm_h8": around}, dataset=dataset):
            for _ in range(3):
                assert torch.equal(norm(rows(), W), rows(-2))
            found = stats()["library.norm"]
        assert found["hit"] == 3
        assert found["misses"] == {"reentrant": 3}
        assert len(calls) == 3


class TestOutputs:
    @pytest.mark.parametrize("dataset", [None, KNOWN])
    def test_a_buffer_is_filled_and_returned(self, dataset):
        norm, _ = library()
        with enable_mapping({"norm_h8": thrice}, dataset=dataset):
            out = rows(0)
            assert norm(rows(), W, out=out) is out
            assert torch.equal(out, rows(3))

    def test_a_wrong_output_raises_and_says_where(self):
        norm, _ = library()
        with enable_mapping({"norm_h8": lambda x, weight: x[:, :4]}, dataset=KNOWN):
            with pytest.raises(RuntimeError) as caught:
                norm(rows(), W)
            assert counts() == (0, 0, 1)
        text = str(caught.value)
        assert all(part in text for part in ("library.norm", "'norm_h8'", "'y'"))

    def test_without_a_definition_only_a_buffer_tells(self):
        norm, _ = library()
        with enable_mapping({"norm_h8": lambda x, weight: x[:, :4]}):
            assert norm(rows(), W).shape == (2, 4)
            with pytest.raises(DataError, match=r"API library\.norm"):
                norm(rows(), W, out=rows())
            assert counts() == (1, 0, 1)

    def test_an_in_place_function_writes_into_its_inputs(self):
        def fused_add_norm(x, residual, weight, eps=1e-6) -> None:
            raise AssertionError("the original must not be called")

        known = definition(
            inputs={"x": ROWS, "residual": ROWS, "weight": WEIGHT},
            outputs={"y": {**ROWS, "param": "x"}, "sum": {**ROWS, "param": "residual"}},
            reference="def run(x, residual, weight):\n    return x, residual\n",
        )

        def mine(x, residual, weight):
            total = x + residual
            return total * 10, total

        norm = routed(
            Api.of_function(fused_add_norm, definition_of=lambda *call: "norm_h8"), fused_add_norm
        )
        with enable_mapping({"norm_h8": mine}, dataset=TraceSet(definitions={"norm_h8": known})):
            x, residual = rows(1), rows(2)
            for _ in range(3):
                x.fill_(1)
                residual.fill_(2)
                assert norm(x, residual, W) is None
                assert torch.equal(x, rows(30))
                assert torch.equal(residual, rows(3))

    def test_as_many_outputs_as_the_call_asks_for(self):
        known = definition(outputs={"y": ROWS, "lse": {"shape": ["rows"], "dtype": "float32"}})

        def attention(x, weight, return_lse=False):
            raise AssertionError("the original must not be called")

        decorated = apply("norm_h8")(attention)
        with enable_mapping(
            {"norm_h8": lambda x, weight: (3 * x, x[:, 0].clone())},
            dataset=TraceSet(definitions={"norm_h8": known}),
        ):
            assert torch.equal(decorated(rows(), W), rows(3))
            out, lse = decorated(rows(), W, return_lse=True)
            assert torch.equal(out, rows(3))
            assert torch.equal(lse, torch.ones(2))


class TestAdapters:
    """An API that tells the arguments of its calls apart itself."""

    def wrapped(self, bind):
        def run(wrapper, q, *, out=None):
            return -q

        api = Api.of_function(
            run, "library.Wrapper.run", definition_of=lambda *call: "norm_h8", bind=bind
        )
        return routed(api, run)

    def test_inputs_come_from_wherever_it_finds_them(self):
        def bind(args, kwargs, known):
            wrapper, q = args
            assert known is not None
            buffers = {} if kwargs.get("out") is None else {0: kwargs["out"]}
            return Bound({"x": q, "weight": wrapper["planned"]}, buffers, (0,))

        run = self.wrapped(bind)
        with enable_mapping({"norm_h8": lambda x, weight: x * weight}, dataset=KNOWN):
            out = rows(0)
            assert run({"planned": W * 7}, rows(), out=out) is out
            assert torch.equal(out, rows(7))

    def test_what_it_refuses_goes_to_the_original(self):
        def bind(args, kwargs, known):
            raise UnroutableError("window")

        run = self.wrapped(bind)
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
            assert torch.equal(run(None, rows()), rows(-1))
            assert stats()["library.Wrapper.run"]["misses"] == {"window": 1}

    def test_its_own_failure_goes_to_the_original_and_is_logged_once(self, caplog):
        def bind(args, kwargs, known):
            raise AttributeError("no attribute _plan")

        run = self.wrapped(bind)
        with caplog.at_level(logging.WARNING), enable_mapping({"norm_h8": thrice}):
            for _ in range(3):
                assert torch.equal(run(None, rows()), rows(-1))
            assert stats()["library.Wrapper.run"]["misses"] == {"adapter failed": 3}
        assert sum("cannot be told apart" in r.getMessage() for r in caplog.records) <= 1

    def test_it_may_bring_the_definition_along(self):
        def norm(x, weight):
            return -x

        api = Api.of_function(
            norm, "library.own", definition_of=lambda *call: "norm_h8", definition=definition()
        )
        wrapped = routed(api, norm)
        with enable_mapping({"norm_h8": thrice}):
            assert torch.equal(wrapped(rows(dtype=torch.float64), W), rows(-1).double())
            assert stats()["library.own"]["misses"] == {"dtype": 1}


@pytest.mark.plugin("python")
class TestSolutions:
    def test_a_solution_is_built_and_called(self):
        norm, _ = library()
        with enable_mapping({"norm_h8": solution()}, dataset=KNOWN):
            assert torch.equal(norm(rows(), W), rows(3))

    def test_so_is_the_file_of_one(self, tmp_path):
        path = tmp_path / "thrice.json"
        path.write_text(json.dumps(solution().model_dump(mode="json", exclude_none=True)))
        norm, _ = library()
        with enable_mapping({"norm_h8": path}, dataset=KNOWN):
            assert torch.equal(norm(rows(), W), rows(3))

    def test_one_that_takes_its_outputs_writes_straight_into_a_buffer(self):
        code = "seen = []\n\n\ndef run(x, weight, y):\n    seen.append(y)\n    y.copy_(3 * x)\n"
        taking = solution("taking", code=code, destination_passing_style=True)
        norm, _ = library()
        with enable_mapping({"norm_h8": taking}, dataset=KNOWN) as handle:
            assert torch.equal(norm(rows(), W), rows(3))  # the outputs are allocated
            out = rows(0)
            version = out._version
            assert norm(rows(), W, out=out) is out
            assert torch.equal(out, rows(3))
            assert out._version == version + 1  # and not copied once more
            strided = torch.zeros(2, 16)[:, ::2]
            assert norm(rows(), W, out=strided) is strided
            assert torch.equal(strided, rows(3))
            x = rows()
            assert norm(x, W, out=x) is x
            assert torch.equal(x, rows(3))
            found = handle.stats()["library.norm"]
        assert (found["hit"], found["fallback"], found["misses"]) == (4, 0, {})

    def test_one_that_cannot_be_built_raises(self):
        norm, calls = library()
        broken = solution(
            "broken", code="raise ValueError('at import')\n\ndef run(x, weight):\n    pass\n"
        )
        with enable_mapping({"norm_h8": broken}, dataset=KNOWN):
            for _ in range(2):
                with pytest.raises(BuildError, match="broken"):
                    norm(rows(), W)
            assert counts() == (0, 0, 2)
        assert calls == []

    def test_one_that_raises_raises_what_it_raises(self):
        norm, calls = library()
        code = "def run(x, weight):\n    raise ZeroDivisionError('mine')\n"
        with enable_mapping({"norm_h8": solution("raising", code=code)}, dataset=KNOWN):
            for _ in range(5):  # it is never given up
                with pytest.raises(ZeroDivisionError, match="mine"):
                    norm(rows(), W)
            assert counts() == (0, 0, 5)
        assert calls == []

    def test_a_language_without_a_builder_raises(self):
        norm, _ = library()
        enable_mapping({"norm_h8": solution(language="mojo")}, dataset=KNOWN)
        with pytest.raises(BuildError, match="mojo"):
            norm(rows(), W)

    def test_without_its_definition_it_is_refused_at_once(self):
        with pytest.raises(ConfigError, match="'norm_h8' is not known") as caught:
            enable_mapping({"norm_h8": solution()})
        assert "FIB_DATASET_PATH" in caught.value.hint
        assert board.active == ()

    def test_a_folder_brings_definitions_along(self, tmp_path):
        (tmp_path / "solutions").mkdir()
        (tmp_path / "solutions/a.json").write_text(solution().model_dump_json(exclude_none=True))
        with pytest.raises(ConfigError, match="is not known"):
            enable_folder(tmp_path)
        (tmp_path / "definitions").mkdir()
        (tmp_path / "definitions/a.json").write_text(definition().model_dump_json())
        norm, _ = library()
        with enable_folder(tmp_path):
            assert torch.equal(norm(rows(), W), rows(3))


class TestRefusals:
    def test_a_callable_that_does_not_take_the_inputs(self):
        with pytest.raises(ConfigError, match="'weight'"):
            enable_mapping({"norm_h8": lambda x: x}, dataset=KNOWN)
        assert board.active == ()

    def test_a_refused_mapping_leaves_the_active_one(self):
        norm, _ = library()
        enable_mapping({"norm_h8": thrice})
        with pytest.raises(ConfigError):
            enable_mapping({"norm_h8": 3})
        assert torch.equal(norm(rows(), W), rows(3))

    def test_a_callable_that_raises_raises_what_it_raises(self):
        norm, calls = library()

        def broken(x, weight):
            raise ZeroDivisionError("mine")

        for dataset in (None, KNOWN):
            with enable_mapping({"norm_h8": broken}, dataset=dataset):
                for _ in range(5):
                    with pytest.raises(ZeroDivisionError, match="mine"):
                        norm(rows(), W)
                assert counts() == (0, 0, 5)
        assert calls == []


def test_names_without_end_are_counted_and_not_kept():
    def norm(x):
        return x

    api = Api.of_function(norm, "library.many", definition_of=lambda args, kwargs: f"m{args[0]}")
    wrapped = routed(api, norm)
    with enable_mapping({"norm_h8": thrice}) as handle:
        for _ in range(2):
            for index in range(3000):
                assert wrapped(index) == index
        assert handle.stats()["library.many"]["fallback"] == 6000
        assert len(wrapped.__apply_slot__.routes) <= 1100


def test_functions_that_are_gone_are_forgotten():
    norm, _ = library()
    with enable_mapping({"norm_h8": thrice}) as handle:
        norm(rows(), W)
        assert len(handle.runtime._calls) >= 1
        known = len(handle.runtime._calls)
        del norm
        gc.collect()
        assert len(handle.runtime._calls) == known - 1


def test_mappings_may_be_exchanged_while_calls_run():
    norm, _ = library()
    wrong = []
    stop = threading.Event()

    def work():
        while not stop.is_set():
            result = float(norm(rows(), W)[0, 0])
            if result not in (-1.0, 3.0, 5.0):
                wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for index in range(60):
        solutions = {"norm_h8": thrice if index % 2 else (lambda x, weight: x * 5)}
        enable_mapping(solutions, dataset=KNOWN if index % 3 else None)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_counts_of_several_threads_add_up():
    norm, _ = library()

    def work():
        for _ in range(200):
            norm(rows(), W)

    with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts() == (800, 0, 0)


def test_compiled_callers_keep_working():
    @apply("norm_h8")
    def norm(x, weight):
        return -x

    @torch.compile(backend="eager")
    def model(x):
        return norm(x + 1, W) + 1

    with enable_mapping({"norm_h8": thrice}, dataset=KNOWN), torch.no_grad():
        assert torch.equal(model(rows()), rows(7))


def test_a_runtime_says_what_it_is():
    assert repr(MappingRuntime({}, {})) == "<MappingRuntime of 0 definitions>"
