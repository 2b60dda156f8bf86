"""Mapping mode: one solution for each definition, whatever its calls come through."""

from __future__ import annotations

import contextlib
import logging

import pytest

torch = pytest.importorskip("torch")

from fib_tests.mapped_norm import (  # noqa: E402
    KNOWN,
    ROWS,
    W,
    dataset,
    definition,
    rows,
    solution,
    thrice,
)
from flashinfer_bench.apply.api import apply, enable_apply  # noqa: E402
from flashinfer_bench.apply.mapping import WrappedCount, enable_mapping, stats  # noqa: E402
from flashinfer_bench.apply.wrappers import decorate  # noqa: E402
from flashinfer_bench.errors import BuildError, ConfigError, DataError  # noqa: E402
from flashinfer_bench.routing.patch_points import router  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_enabled")


def library():
    """Make a function of a library, and the wrapper that an adapter puts around it."""
    calls = []

    def norm(x, weight, eps=1e-6, *, out=None, enable_pdl=None):
        calls.append(x)
        if out is None:
            return -x
        return out.copy_(-x)

    norm.__module__, norm.__qualname__ = "library", "norm"
    return decorate(lambda x: f"norm_h{x.shape[-1]}", norm), calls


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

        before = len(router.points())
        count = enable_apply({"norm_h8": thrice})
        assert isinstance(count, WrappedCount)
        assert isinstance(count, int)
        # PatchPoint of other tests may be about: those of one definition alone do not count.
        assert 2 <= count < before
        assert enable_apply({"no_such_definition": thrice}) == count - 1
        assert norm is not None

    def test_an_empty_mapping_enables_nothing_and_replaces(self):
        enable_apply({"norm_h8": thrice})
        assert enable_apply({}) == 0
        assert router.active == ()

    def test_with_nothing_configured_nothing_happens(self, monkeypatch, tmp_path):
        monkeypatch.delenv("FIB_DATASET_PATH")
        monkeypatch.setenv("HOME", str(tmp_path))
        norm, _ = library()
        with enable_apply({"norm_h8": thrice}):
            handle = enable_apply()
            assert isinstance(handle, WrappedCount)
            with handle as entered:
                assert (int(entered), entered.stats()) == (0, {})
                assert torch.equal(norm(rows(), W), rows(3))
            assert torch.equal(norm(rows(), W), rows(3))

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


@pytest.mark.plugin("python")
class TestSolutions:
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

    def test_one_whose_outputs_cannot_be_allocated_raises(self):
        """Their size follows from no input: there is no call that it could take."""
        outputs = {"y": {"shape": ["others"], "dtype": "float32"}}
        known = dataset(definition(outputs=outputs))
        code = "def run(x, weight, y):\n    y.fill_(3)\n"
        norm, calls = library()
        taking = solution("taking", code=code, destination_passing_style=True)
        with enable_mapping({"norm_h8": taking}, dataset=known):
            with pytest.raises(RuntimeError, match="cannot be allocated"):
                norm(rows(), W)
            assert counts() == (0, 0, 1)
        assert calls == []

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

    def test_without_its_definition_it_is_refused_at_once(self):
        with pytest.raises(ConfigError, match="'norm_h8' is not known") as caught:
            enable_mapping({"norm_h8": solution()})
        assert "FIB_DATASET_PATH" in caught.value.hint
        assert router.active == ()


def test_a_callable_that_does_not_take_the_inputs():
    with pytest.raises(ConfigError, match="'weight'"):
        enable_mapping({"norm_h8": lambda x: x}, dataset=KNOWN)
    assert router.active == ()


def test_names_without_end_are_counted():
    def norm(x):
        return x

    wrapped = decorate(lambda x: f"m{x}", norm)
    with enable_mapping({"norm_h8": thrice}) as handle:
        for _ in range(2):
            for index in range(3000):
                assert wrapped(index) == index
        (found,) = handle.stats().values()
        assert found["fallback"] == 6000


# -------------------------------------------------------------------------------- odd ways to call


def always(function, of="norm_h8", name=""):
    """Return a wrapper of a function all calls of which are of one definition."""
    if name:
        getattr(function, "__func__", function).__qualname__ = name
    return decorate(lambda *args, **kwargs: of, function)


def only():
    """Return the counters of the only function that was called."""
    (found,) = stats().values()
    return found


@pytest.fixture(params=["known", "unknown"])
def known(request):
    """With a definition, and with the name alone."""
    return KNOWN if request.param == "known" else None


def test_a_function_that_tells_nothing_of_its_arguments():
    """Other arguments than those of the definition go to the original; so says nobody."""
    calls = []

    def original(*args, **kwargs):
        calls.append(args)
        return -1

    wrapped = always(original, name="compiled")
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
        of = definition(
            inputs={"x": ROWS, "residual": ROWS},
            outputs={"a": {**ROWS, "param": "x"}, "b": {**ROWS, "param": "residual"}},
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


def test_one_mapped_function_calls_another(known):
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
