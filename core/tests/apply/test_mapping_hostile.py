"""Mapping mode as others use it: every way to call, from threads, under other names, by mistake."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import copy
import functools
import gc
import importlib
import inspect
import json
import pickle
import sys
import threading
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402

from flashinfer_bench.apply.api import apply, disable_apply, enable_apply  # noqa: E402
from flashinfer_bench.apply.apis import Api, Bound, routed  # noqa: E402
from flashinfer_bench.apply.mapping import enable_mapping, stats  # noqa: E402
from flashinfer_bench.apply.returns import ANYTHING, returns_of  # noqa: E402
from flashinfer_bench.data import Definition, TraceSet  # noqa: E402
from flashinfer_bench.errors import ConfigError, DataError  # noqa: E402
from flashinfer_bench.integration.slots import board  # noqa: E402

ROWS = {"shape": ["rows", "hidden"], "dtype": "float32"}
WEIGHT = {"shape": ["hidden"], "dtype": "float32"}
W = torch.ones(8)


@pytest.fixture(autouse=True)
def nothing_enabled(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "no-dataset"))
    for name in ("FIB_APPLY_PATH", "FIB_ENABLE_APPLY"):
        monkeypatch.delenv(name, raising=False)
    board.clear()
    yield
    board.clear()
    gc.collect()


def definition(name="norm_h8", **changes):
    return Definition.model_validate(
        {
            "name": name,
            "op_type": "norm",
            "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 8}},
            "inputs": {"x": ROWS, "weight": WEIGHT},
            "outputs": {"y": ROWS},
            "reference": "def run(x, weight):\n    return x * weight\n",
            **changes,
        }
    )


def dataset(*definitions):
    return TraceSet(definitions={each.name: each for each in definitions or [definition()]})


KNOWN = dataset()
TWO = definition(outputs={"y": ROWS, "lse": {"shape": ["rows"], "dtype": "float32"}})


def rows(value=1.0, count=2):
    return torch.full((count, 8), float(value))


def thrice(x, weight):
    return 3 * x


def always(function, of="norm_h8", name="", **fields):
    """Return a wrapper of a function all calls of which are of one definition."""
    fields.setdefault("definition_of", lambda args, kwargs: of)
    return routed(Api.of_function(function, name, **fields), function)


def only():
    """Return the counters of the only function that was called."""
    (found,) = stats().values()
    return found


@pytest.fixture(params=["known", "unknown"])
def known(request):
    """With a definition, and with the name alone."""
    return KNOWN if request.param == "known" else None


class Result(NamedTuple):
    """What a function of a library may return."""

    y: torch.Tensor
    lse: torch.Tensor


class TestWaysToCall:
    @pytest.mark.parametrize("by_name", [0, 1, 2])
    def test_positions_names_and_defaults(self, known, by_name):
        def norm(x, weight=W, *, eps=1e-6):
            return -x

        wrapped = always(norm)
        names, values = ("x", "weight"), (rows(), W)
        named = dict(zip(names[2 - by_name :], values[2 - by_name :], strict=True))
        with enable_mapping({"norm_h8": thrice}, dataset=known):
            for _ in range(3):
                assert torch.equal(wrapped(*values[: 2 - by_name], **named), rows(3))
            assert torch.equal(wrapped(rows()), rows(3))  # the default is the input
            assert torch.equal(wrapped(rows(), eps=1e-6), rows(3))
            assert torch.equal(wrapped(rows(), eps=1e-5), rows(-1))
            for wrong in ([], [rows(), W, 1e-6]):
                with pytest.raises(TypeError):
                    wrapped(*wrong)
            with pytest.raises(TypeError, match="multiple values"):
                wrapped(rows(), x=rows())

    def test_an_input_that_may_be_left_out_is_none_for_the_definition(self):
        def norm(x, weight=None):
            return -x

        wrapped = always(norm)
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
            assert torch.equal(wrapped(rows(), W), rows(3))
            for _ in range(2):
                assert torch.equal(wrapped(rows()), rows(-1))
                assert torch.equal(wrapped(rows(), None), rows(-1))
            assert only()["misses"] == {"type": 4}

    @pytest.mark.parametrize("kind", ["function", "static", "class"])
    def test_methods_of_every_kind(self, known, kind):
        binders = {"function": lambda f: f, "static": staticmethod, "class": classmethod}

        class Layer:
            pass

        def method(self, x, weight):
            return -x

        def plain(x, weight):
            return -x

        method.__qualname__ = plain.__qualname__ = "Layer.run"
        original = binders[kind](plain if kind == "static" else method)
        Layer.run = always(original, name="Layer.run")
        with enable_mapping({"norm_h8": thrice}, dataset=known):
            for _ in range(2):
                assert torch.equal(Layer().run(rows(), W), rows(3))
                assert torch.equal(Layer().run(weight=W, x=rows()), rows(3))
            if kind != "function":
                assert torch.equal(Layer.run(rows(), W), rows(3))
        assert torch.equal(Layer().run(rows(), W), rows(-1))

    def test_a_plan_and_many_runs(self):
        class Wrapper:
            def plan(self, weight):
                self.weight = weight

            def run(self, q, *, out=None, return_lse=False):
                return -q

        def bind(args, kwargs, known):
            self, q = args
            out = kwargs.get("out")
            chosen = (0, 1) if kwargs.get("return_lse") else (0,)
            return Bound({"x": q, "weight": self.weight}, {} if out is None else {0: out}, chosen)

        Wrapper.run = always(Wrapper.run, bind=bind)
        solution = lambda x, weight: (x * weight, x.sum(-1))  # noqa: E731
        with enable_mapping({"norm_h8": solution}, dataset=dataset(TWO)):
            wrapper = Wrapper()
            assert torch.equal(wrapper.run(rows()), rows(-1))  # not planned: the adapter fails
            for factor in (3, 5):
                wrapper.plan(W * factor)
                out = rows(0)
                assert wrapper.run(rows(), out=out) is out
                assert torch.equal(out, rows(factor))
                result, lse = wrapper.run(rows(), return_lse=True)
                assert torch.equal(result, rows(factor))
                assert torch.equal(lse, torch.tensor([8.0, 8.0]))

    def test_a_function_that_tells_nothing_of_its_arguments(self, known):
        """Other arguments than those of the definition go to the original; so says nobody."""
        calls = []

        def original(*args, **kwargs):
            calls.append(args)
            return -1

        wrapped = routed(Api("compiled", definition_of=lambda args, kwargs: "norm_h8"), original)
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
            for _ in range(2):
                assert torch.equal(wrapped(rows(), W), rows(3))
                assert torch.equal(wrapped(rows(), weight=W), rows(3))
                out = rows(0)
                assert wrapped(rows(), W, out) is None
                assert torch.equal(out, rows(3))
                assert wrapped(rows(), W, 1e-6, None) == -1
                assert wrapped(rows()) == -1
                assert wrapped(rows(), gamma=W) == -1
                assert wrapped(rows(), W, weight=W) == -1
            assert only()["misses"] == {"arguments": 8}
        assert len(calls) == 8

    def test_names_that_are_none(self):
        for name in (None, 3, [], ["norm_h8"], {}, b"norm_h8", torch.ones(2)):
            wrapped = always(lambda x, weight: -x, of=name, name="odd")
            with enable_mapping({"norm_h8": thrice}):
                assert torch.equal(wrapped(rows(), W), rows(-1))


class TestBuffers:
    def wrapped(self):
        def norm(x, weight, out=None):
            return -x if out is None else out.fill_(-1)

        return always(norm)

    @pytest.mark.parametrize(
        "out",
        [
            torch.zeros(3, 8),
            torch.zeros(2, 9),
            torch.zeros(16),
            torch.zeros(2, 8, dtype=torch.float64),
            torch.zeros(2, 8, requires_grad=True),
            torch.zeros(2, 8).to_sparse(),
            torch.zeros(2, 8, device="meta"),
            "text",
            (torch.zeros(2, 8), torch.zeros(2, 8)),
        ],
        ids=str,
    )
    def test_one_that_the_output_does_not_fit_goes_to_the_original(self, out):
        wrapped = self.wrapped()
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
            for _ in range(2):
                with contextlib.suppress(Exception):  # what the original says of it
                    wrapped(rows(), W, out=out)
            found = only()
        assert (found["hit"], found["error"], found["fallback"]) == (0, 0, 2)
        assert sum(found["misses"].values()) == 2

    @pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
    def test_nested_tensors_anywhere(self, known):
        nested = torch.nested.nested_tensor([torch.ones(8), torch.ones(8)])
        wrapped = self.wrapped()
        with enable_mapping({"norm_h8": lambda x, weight: x * 3}, dataset=known):
            wrapped(nested, W)
            wrapped(rows(), W, out=nested)
            if known:
                wrapped(nested, W, out=rows(0))
            else:
                with pytest.raises(DataError, match=r"is a Tensor, but goes into \[2, 8\]"):
                    wrapped(nested, W, out=rows(0))
            assert only()["error"] == (0 if known else 1)

    @pytest.mark.parametrize("style", ["a slice", "an input", "transposed", "a view of an input"])
    def test_places_of_every_kind(self, known, style):
        wrapped = self.wrapped()
        with enable_mapping({"norm_h8": lambda x, weight: x.flip(0) * 3}, dataset=known):
            for _ in range(3):
                x = torch.arange(16.0).view(2, 8)
                wanted = x.flip(0) * 3
                out = {
                    "a slice": torch.zeros(2, 16)[:, ::2],
                    "an input": x,
                    "transposed": torch.zeros(8, 2).t(),
                    "a view of an input": x.view(2, 8),
                }[style]
                assert wrapped(x, W, out=out) is out
                assert torch.equal(out, wanted)

    def test_views_of_inputs_are_written_as_if_at_once(self, known):
        """The solution swaps its inputs, without a copy."""

        def swap(x, residual, out=None, lse=None):
            raise AssertionError

        of = definition(
            inputs={"x": ROWS, "residual": ROWS},
            outputs={"a": {**ROWS, "param": "x"}, "b": {**ROWS, "param": "residual"}},
            reference="def run(x, residual):\n    return residual, x\n",
        )

        def in_place(x, residual) -> None:
            raise AssertionError

        wrapped = always(in_place)
        with enable_mapping({"norm_h8": lambda x, residual: (residual, x)}, dataset=dataset(of)):
            for _ in range(3):
                x, residual = rows(1), rows(2)
                assert wrapped(x, residual) is None
                assert torch.equal(x, rows(2))
                assert torch.equal(residual, rows(1))
            shared = rows(1)
            with pytest.raises(AssertionError):  # the same memory twice: the original decides
                wrapped(shared, shared)

    def test_two_outputs_in_one_place_are_refused(self):
        of = definition(outputs={"a": {**ROWS, "param": "x"}, "b": {**ROWS, "param": "x"}})

        def in_place(x, weight) -> None:
            x.fill_(-1)

        wrapped = always(in_place)
        with enable_mapping({"norm_h8": lambda x, weight: (x, x)}, dataset=dataset(of)):
            x = rows()
            wrapped(x, W)
            assert torch.equal(x, rows(-1))
            assert only()["misses"] == {"signature": 1}

    def test_fake_tensors_go_through_a_mapping_that_knows_the_name_alone(self):
        wrapped = self.wrapped()
        with FakeTensorMode(), enable_mapping({"norm_h8": thrice}):
            x, w, out = torch.ones(2, 8), torch.ones(8), torch.ones(2, 8)
            assert wrapped(x, w).shape == (2, 8)
            assert wrapped(x, w, out=out) is out
            assert wrapped(x, w, out=x) is x

    def test_as_many_outputs_as_are_asked_for(self, known):
        def attention(x, weight, out=None, lse=None, return_lse=False):
            raise AssertionError

        def named(x, weight, return_lse=False) -> Result:
            raise AssertionError

        known = dataset(TWO) if known else None
        solution = lambda x, weight: (3 * x, x.sum(-1))  # noqa: E731
        with enable_mapping({"norm_h8": solution}, dataset=known):
            plain, tuples = always(attention), always(named)
            for _ in range(3):
                assert torch.equal(plain(rows(), W), rows(3))
                assert type(plain(rows(), W, return_lse=True)) is tuple
                y, lse = rows(0), torch.zeros(2)
                assert plain(rows(), W, y, lse, True) == (y, lse)
                assert torch.equal(y, rows(3))
                assert torch.equal(lse, torch.full((2,), 8.0))
                assert plain(rows(), W, lse=lse).shape == (2, 8)
                assert type(tuples(rows(), W, return_lse=True)) is Result
                assert torch.equal(tuples(rows(), W), rows(3))

    def test_misses_are_counted_once_each(self):
        """A solution that takes its outputs is offered the caller's buffers."""
        from flashinfer_bench.data import Solution

        code = "def run(x, weight, y):\n    y.copy_(3 * x)\n"
        taking = Solution.model_validate(
            {
                "name": "taking",
                "definition": "norm_h8",
                "author": "me",
                "spec": {
                    "language": "python",
                    "target_hardware": ["cpu"],
                    "entry_point": "main.py::run",
                },
                "sources": [{"path": "main.py", "content": code}],
            }
        )
        wrapped = self.wrapped()
        with enable_mapping({"norm_h8": taking}, dataset=KNOWN):
            assert torch.equal(wrapped(rows(), W, out=rows(0)), rows(3))
            assert torch.equal(wrapped(rows(), W, out=torch.nn.Buffer(rows(0))), rows(3))
            for _ in range(3):
                assert torch.equal(wrapped(rows(), W.double(), out=rows(0)), rows(-1))
            found = only()
        assert (found["hit"], found["fallback"], found["misses"]) == (2, 3, {"dtype": 3})


class TestNesting:
    def test_one_mapped_function_calls_another(self, known):
        inner = always(lambda x, weight: -x, of="inner", name="inner")

        def outer(x, weight):
            return inner(x, weight) * 10

        outer = always(outer, of="outer", name="outer")
        both = dataset(definition("inner"), definition("outer")) if known else None
        with enable_mapping({"inner": thrice}, dataset=both):
            for _ in range(3):
                assert torch.equal(outer(rows(), W), rows(30))
        mapping = {"inner": thrice, "outer": lambda x, weight: inner(x, weight) + 1}
        with enable_mapping(mapping, dataset=both):
            for _ in range(3):
                assert torch.equal(outer(rows(), W), rows(4))

    def test_two_solutions_that_call_one_anothers_function(self, known):
        first = always(lambda x, weight: x + 1, of="first", name="first")
        second = always(lambda x, weight: x + 10, of="second", name="second")
        mapping = {
            "first": lambda x, weight: second(x, weight) + 100,
            "second": lambda x, weight: first(x, weight) + 1000,
        }
        both = dataset(definition("first"), definition("second")) if known else None
        with enable_mapping(mapping, dataset=both):
            for _ in range(3):
                # first -> second -> first, which is the original within itself
                assert torch.equal(first(rows(0), W), rows(1101))
                assert torch.equal(second(rows(0), W), rows(1110))

    def test_a_solution_that_calls_its_function_now_and_then(self, known):
        """By size, as one that leaves large calls to the original."""
        wrapped = always(lambda x, weight: -x)
        mine = lambda x, weight: wrapped(x, weight) if x.shape[0] > 4 else 3 * x  # noqa: E731
        with enable_mapping({"norm_h8": mine}, dataset=known):
            for _ in range(3):
                assert torch.equal(wrapped(rows(), W), rows(3))
                assert torch.equal(wrapped(rows(count=6), W), rows(-1, count=6))

    def test_an_original_that_calls_itself_by_its_wrapped_name(self, known):
        @apply("norm_h8")
        def norm(x, weight, depth=0):
            return norm(x, weight) + 1 if depth else -x

        with enable_mapping({"norm_h8": thrice}, dataset=known):
            for _ in range(2):
                assert torch.equal(norm(rows(), W, 5), rows(4))  # depth is unknown: the original
                assert torch.equal(norm(rows(), W), rows(3))

    def test_bodies_within_bodies_and_errors_in_them(self):
        wrapped = always(lambda x, weight: -x)
        times = lambda n: {"norm_h8": lambda x, weight: x * n}  # noqa: E731
        with enable_apply(times(3)):
            with contextlib.suppress(KeyError), enable_apply(times(5)):
                with enable_apply(times(7)):
                    assert torch.equal(wrapped(rows(), W), rows(7))
                assert torch.equal(wrapped(rows(), W), rows(5))
                raise KeyError
            assert torch.equal(wrapped(rows(), W), rows(3))
            with enable_apply({"other": thrice}):
                assert torch.equal(wrapped(rows(), W), rows(-1))
            assert torch.equal(wrapped(rows(), W), rows(3))
        assert board.active == ()

    def test_a_solution_may_disable_apply(self, known):
        wrapped = always(lambda x, weight: -x)

        def last(x, weight):
            disable_apply()
            return wrapped(x, weight) * 2

        enable_mapping({"norm_h8": last}, dataset=known)
        assert torch.equal(wrapped(rows(), W), rows(-2))
        assert torch.equal(wrapped(rows(), W), rows(-1))


class TestOddFunctions:
    def test_what_answers_later_cannot_be_wrapped(self):
        async def later(x, weight):
            return -x

        def one_by_one(x, weight):
            yield -x

        async def each(x, weight):
            yield -x

        class Later:
            async def __call__(self, x, weight):
                return -x

        for function in (later, one_by_one, each, Later(), functools.partial(later, weight=W)):
            with pytest.raises(ConfigError, match="coroutine or a generator"):
                always(function, name="odd")
        for other in (torch.nn.Linear, 3, None):
            with pytest.raises(ConfigError, match="cannot be wrapped"):
                routed(Api("odd", definition_of=lambda *call: None), other)

    def test_coroutines_may_call_wrapped_functions(self, known):
        wrapped = always(lambda x, weight: -x)

        async def caller(value):
            first = wrapped(rows(value), W)
            await asyncio.sleep(0)
            return first, wrapped(rows(value), W)

        async def several():
            return await asyncio.gather(*(caller(value) for value in range(8)))

        with enable_mapping({"norm_h8": thrice}, dataset=known):
            for value, results in enumerate(asyncio.run(several())):
                assert all(torch.equal(each, rows(3 * value)) for each in results)

    def test_callables_without_a_name(self, known):
        wrapped = always(functools.partial(lambda scale, x, weight: -x, 1.0))
        with enable_mapping({"norm_h8": functools.partial(lambda k, x, weight: k * x, 3)}):
            assert torch.equal(wrapped(rows(), W), rows(3))

        class Module(torch.nn.Module):
            def forward(self, x, weight):
                return 3 * x

        with enable_mapping({"norm_h8": Module()}, dataset=known):
            assert torch.equal(wrapped(rows(), W), rows(3))


MODULE = """
from flashinfer_bench.apply.api import apply

@apply("norm_h8")
def norm(x, weight):
    return -x

class Layer:
    @apply("norm_h8")
    def norm(self, x, weight):
        "Is documented."
        return -x
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "fib_hostile_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("fib_hostile_module")
    sys.modules.pop("fib_hostile_module", None)


class TestFunctionsAsObjects:
    def test_a_name_that_was_imported_before(self, module):
        from fib_hostile_module import norm as other

        with enable_apply({"norm_h8": thrice}):
            assert torch.equal(other(rows(), W), rows(3))
            assert torch.equal(module.norm(rows(), W), rows(3))
            assert only()["hit"] == 2

    def test_pickles_copies_and_signatures(self, module):
        with enable_apply({"norm_h8": thrice}):
            layer = module.Layer()
            for norm in (
                pickle.loads(pickle.dumps(module.norm)),
                copy.deepcopy(module.norm),
                copy.copy(module.norm),
                pickle.loads(pickle.dumps(layer.norm)),
                copy.deepcopy({"layer": layer})["layer"].norm,
                functools.partial(module.norm),
            ):
                assert torch.equal(norm(rows(), W), rows(3))
        assert str(inspect.signature(module.norm)) == "(x, weight)"
        assert str(inspect.signature(module.Layer.norm)) == "(self, x, weight)"
        assert module.Layer.norm.__doc__ == "Is documented."
        assert torch.equal(inspect.unwrap(module.norm)(rows(), W), rows(-1))

    def test_a_module_that_is_loaded_again(self, module):
        old = module.norm
        with enable_apply({"norm_h8": thrice}):
            assert torch.equal(old(rows(), W), rows(3))
            importlib.reload(module)
            assert module.norm is not old
            for _ in range(2):
                assert torch.equal(module.norm(rows(), W), rows(3))
                assert torch.equal(old(rows(), W), rows(3))  # whoever has kept it
            assert only()["hit"] == 5
        assert torch.equal(module.norm(rows(), W), rows(-1))


class TestDefinitions:
    def test_they_come_from_the_dataset_that_is_given(self, tmp_path):
        wrapped = always(lambda x, weight: -x)
        with enable_apply({"norm_h8": thrice}, dataset=KNOWN):
            assert torch.equal(wrapped(rows().double(), W), rows(-1).double())
            assert only()["misses"] == {"dtype": 1}
        with enable_apply({"norm_h8": thrice}):
            assert torch.equal(wrapped(rows().double(), W), rows(3).double())

    def test_and_else_from_the_usual_one(self, tmp_path, monkeypatch):
        for folder, rank in (("given", ["rows", "hidden"]), ("usual", ["hidden"])):
            (tmp_path / folder / "definitions").mkdir(parents=True)
            for name in ("norm_h8", *(["other"] if folder == "usual" else [])):
                made = definition(name, inputs={"x": ROWS, "weight": {**WEIGHT, "shape": rank}})
                path = tmp_path / folder / "definitions" / f"{name}.json"
                path.write_text(made.model_dump_json(exclude_none=True))
        monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "usual"))
        mapping = {"norm_h8": thrice, "other": thrice}
        with enable_apply(mapping, dataset=tmp_path / "given") as handle:
            found = handle.runtime._definitions
            assert found["norm_h8"].inputs["weight"].shape == ["rows", "hidden"]
            assert found["other"].inputs["weight"].shape == ["hidden"]

    def test_a_dataset_without_a_mapping_is_refused(self, tmp_path):
        for source in (None, KNOWN, str(tmp_path)):
            with pytest.raises(ConfigError, match="there is none"):
                enable_apply(source, dataset=KNOWN)
        with pytest.raises(FileNotFoundError):
            enable_apply({"norm_h8": thrice}, dataset=tmp_path / "none")
        assert board.active == ()

    def test_a_folder_of_solutions_takes_one_too(self, tmp_path, monkeypatch):
        (tmp_path / "solutions").mkdir()
        record = {
            "name": "thrice",
            "definition": "norm_h8",
            "author": "me",
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "destination_passing_style": False,
            },
            "sources": [{"path": "main.py", "content": "def run(x, weight):\n    return 3 * x\n"}],
        }
        (tmp_path / "solutions" / "one.json").write_text(json.dumps(record))
        monkeypatch.setenv("FIB_APPLY_PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="is not known"):
            enable_apply()
        wrapped = always(lambda x, weight: -x)
        with enable_apply(dataset=KNOWN):
            assert torch.equal(wrapped(rows(), W), rows(3))


class TestThreads:
    def test_everything_at_once(self, known):
        """Calls, enabling, disabling, statistics: no call gets anything but one whole answer."""
        functions = [always(lambda x, weight: -x, of="norm_h8", name=f"f{n}") for n in range(8)]
        wrong, stop = [], threading.Event()

        def call():
            while not stop.is_set():
                for function in functions:
                    out = float(function(rows(), W)[0, 0])
                    if out not in (-1.0, 3.0, 5.0):
                        wrong.append(out)

        def switch(factor):
            while not stop.is_set():
                try:
                    with enable_mapping(
                        {"norm_h8": lambda x, weight: x * factor, f"o{factor}": thrice},
                        dataset=known,
                    ) as handle:
                        float(functions[0](rows(), W)[0, 0])
                        handle.stats()
                        stats()
                except Exception as error:  # noqa: BLE001
                    wrong.append(error)

        jobs = [*[(call, ())] * 3, (switch, (3,)), (switch, (5,))]
        threads = [threading.Thread(target=job, args=args) for job, args in jobs]
        for thread in threads:
            thread.start()
        stop.wait(1.5)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
        assert board.active == ()
        assert all(torch.equal(function(rows(), W), rows(-1)) for function in functions)

    def test_a_mapping_that_ends_while_new_functions_are_called(self, known):
        """What was never called is worked out while calls add to it."""
        errors = []

        def watched(*_args):
            try:
                for _ in range(40):
                    functions = [
                        always(lambda x, weight: -x, of=f"d{n}", name=f"f{n}") for n in range(30)
                    ]
                    for function in functions:
                        function(rows(), W)
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=watched) for _ in range(3)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            mapping = {f"d{n}": thrice for n in range(30)}
            while any(thread.is_alive() for thread in threads):
                with enable_mapping(mapping):
                    functions = [always(lambda x, weight: -x, of="d0") for _ in range(3)]
                    functions[0](rows(), W)
        finally:
            sys.setswitchinterval(interval)
            for thread in threads:
                thread.join()
        assert errors == []

    def test_functions_come_and_go_while_they_are_listed(self):
        stop = threading.Event()

        def come_and_go():
            while not stop.is_set():
                made = [always(thrice, name=f"f{n}") for n in range(20)]
                del made

        thread = threading.Thread(target=come_and_go)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            thread.start()
            for _ in range(300):
                board.slots()
        finally:
            stop.set()
            thread.join()
            sys.setswitchinterval(interval)


def test_a_parser_that_another_thread_disturbs(monkeypatch):
    parse, failures = ast.parse, [SystemError("recursion depth mismatch")] * 3

    def disturbed(*args, **kwargs):
        if failures:
            raise failures.pop()
        return parse(*args, **kwargs)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert returns_of("tuple[Unknown, Unknown]").number == 2
    assert failures == []
    failures.extend([SystemError] * 1000)
    assert returns_of("tuple[Unknown, Unknown]") is ANYTHING


def test_a_wrong_number_of_outputs_is_told(known):
    wrapped = always(lambda x, weight: -x)
    solution = lambda x, weight: (x, x)  # noqa: E731
    with enable_mapping({"norm_h8": solution}, dataset=KNOWN):
        with pytest.raises((RuntimeError, DataError), match="output"):
            wrapped(rows(), W)
        assert only()["error"] == 1
