"""Programs written for earlier releases: the names that they import, and how they call them."""

from __future__ import annotations

import importlib.util
import inspect
from importlib import import_module
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import flashinfer_bench  # noqa: E402
from flashinfer_bench.integration.slots import board  # noqa: E402

spec = importlib.util.spec_from_file_location(
    "runtime_dataset", Path(__file__).with_name("runtime_dataset.py")
)
runtime_dataset = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runtime_dataset)

MODULES = {
    "flashinfer_bench": (
        "apply enable_apply disable_apply ApplyConfig ApplyConfigRegistry ApplyRuntime"
    ),
    "flashinfer_bench.apply": (
        "apply disable_apply enable_apply get_runtime set_runtime ApplyConfig ApplyConfigRegistry "
        "get_default_registry ApplyRuntime ApplyKey ApplyKeyBuilder AxesOnlyKeyBuilder "
        "GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder ApplyKeyFactory ApplyTable"
    ),
    "flashinfer_bench.apply.api": "apply enable_apply disable_apply get_runtime set_runtime",
    "flashinfer_bench.apply.config": "ApplyConfig",
    "flashinfer_bench.apply.hook": "set_apply_hook get_apply_hook",
    "flashinfer_bench.apply.key": (
        "ApplyKey ApplyKeyBuilder AxesOnlyKeyBuilder GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder "
        "ApplyKeyFactory"
    ),
    "flashinfer_bench.apply.runtime": "ApplyRuntime get_runtime set_runtime",
    "flashinfer_bench.apply.table": "ApplyTable",
}

# As in `test_api_parity`: "=" marks what may be left out, "*" what is given by keyword only.
FUNCTIONS = {
    "api:apply": "name_or_resolver args= kwargs= fallback= *runtime_kwargs=",
    "api:enable_apply": "dataset_path= apply_config= *device= *dataset=",
    "api:disable_apply": "",
    "hook:set_apply_hook": "hook",
    "hook:get_apply_hook": "",
    "runtime:get_runtime": "",
    "runtime:set_runtime": "rt",
    "runtime:ApplyRuntime": "trace_set= config= *device=",
    "runtime:ApplyRuntime.rebuild": "trace_set= config=",
    "runtime:ApplyRuntime.dispatch": "name args= kwargs= fallback=",
    "runtime:ApplyRuntime.start": "",
    "runtime:ApplyRuntime.stop": "",
    "runtime:ApplyRuntime.get_instance": "",
    "key:ApplyKeyFactory.register": "type_name builder_cls",
    "key:ApplyKeyFactory.for_type": "type_name",
    "key:ApplyKeyFactory.specialize": "defn",
    "key:ApplyKey.from_encoded": "s",
    "table:ApplyTable.match_solution": "def_name key",
}


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    board.clear()
    board.asked()
    yield
    board.clear()


@pytest.mark.parametrize("module", MODULES)
def test_names_are_there(module):
    for name in MODULES[module].split():
        assert getattr(import_module(module), name) is not None, name


def shown(function):
    parts = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        star = "*" if parameter.kind is parameter.KEYWORD_ONLY else ""
        parts.append(f"{star}{name}{'=' if parameter.default is not parameter.empty else ''}")
    return " ".join(parts)


@pytest.mark.parametrize("path", FUNCTIONS)
def test_parameters_are_the_same(path):
    module, _, attributes = path.partition(":")
    found = import_module(f"flashinfer_bench.apply.{module}")
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    assert shown(found) == FUNCTIONS[path]


@pytest.mark.parametrize("name", flashinfer_bench.apply.__all__)
def test_every_public_name_is_there(name):
    assert getattr(flashinfer_bench.apply, name) is not None
    assert name in dir(flashinfer_bench.apply)


@pytest.mark.plugin("python")
class TestPrograms:
    """The examples of the documents that users know."""

    @pytest.fixture
    def path(self, tmp_path):
        return str(runtime_dataset.sample(tmp_path / "dataset").root)

    def test_the_handle(self, path):
        from flashinfer_bench.apply import ApplyConfig, apply, disable_apply, enable_apply

        cfg = ApplyConfig(max_atol=1e-2, max_rtol=1e-5, aot_ratio=1.0)
        enable_apply(path, cfg)
        x = torch.zeros(2, 4)
        out = apply("double", runtime_kwargs={"x": x}, fallback=lambda **kw: kw["x"] * 2)
        assert out[0, 0] == 100
        disable_apply()
        out = apply("double", runtime_kwargs={"x": x}, fallback=lambda **kw: kw["x"] * 2)
        assert out[0, 0] == 0

    def test_the_handle_as_a_context_manager(self, path):
        from flashinfer_bench import ApplyConfig, enable_apply

        with enable_apply(path, ApplyConfig()) as apply_fn:
            x = torch.zeros(2, 4)
            out = apply_fn("double", runtime_kwargs={"x": x}, fallback=lambda x: x * 2)
            assert out[0, 0] == 100

    def test_the_decorator(self, path):
        import flashinfer_bench

        @flashinfer_bench.apply("double")
        def double(x):
            return x * 2

        @flashinfer_bench.apply(lambda x, bias=None: f"gemm_n_{x.shape[0]}_k_{x.shape[1]}")
        def gemm(x, bias=None):
            return x * 2

        with flashinfer_bench.enable_apply(path):
            assert double(torch.zeros(2, 4))[0, 0] == 100
            assert gemm(torch.zeros(2, 4))[0, 0] == 0

    def test_the_runtime_by_hand(self, path):
        from flashinfer_bench.apply.config import ApplyConfig
        from flashinfer_bench.apply.runtime import ApplyRuntime, get_runtime, set_runtime
        from flashinfer_bench.data import TraceSet

        runtime = ApplyRuntime(TraceSet.from_path(path), ApplyConfig())
        set_runtime(runtime)
        assert get_runtime() is runtime
        x = torch.zeros(3, 4)
        assert runtime.dispatch("double", {"x": x}, None)[0, 0] == 1000
        runtime.rebuild(traceset := TraceSet.from_path(path), ApplyConfig(aot_ratio=0.0))
        assert traceset.definitions
        assert runtime.dispatch("double", {"x": x}, fallback=None)[0, 0] == 1000
        set_runtime(None)
        assert get_runtime() is None

    def test_the_hook(self, path):
        from flashinfer_bench.apply import apply, enable_apply
        from flashinfer_bench.apply.hook import set_apply_hook

        seen = []
        set_apply_hook(lambda def_name, runtime_kwargs: seen.append((def_name, runtime_kwargs)))
        try:
            with enable_apply(path):
                x = torch.zeros(2, 4)
                assert apply("double", runtime_kwargs={"x": x}, fallback=None)[0, 0] == 100
        finally:
            set_apply_hook(None)
        assert seen == [("double", {"x": x})]

    def test_a_mapping(self):
        from flashinfer_bench.apply import apply, disable_apply, enable_apply, stats

        @apply("double")
        def double(x):
            return x * 2

        count = enable_apply({"double": lambda x: x * 2 + 5})
        assert isinstance(count, int)
        assert count >= 1
        x = torch.zeros(2, 4)
        assert double(x)[0, 0] == 5
        assert any(each["hit"] == 1 for each in stats().values())
        enable_apply({"double": lambda x: x * 2 + 6})
        assert double(x)[0, 0] == 6
        disable_apply()
        assert double(x)[0, 0] == 0
