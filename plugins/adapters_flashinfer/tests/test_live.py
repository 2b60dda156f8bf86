"""Solutions whose definition no dataset has: it is made of the first call, by FlashInfer itself."""

import json
import logging

import gqa
import mla_calls
import pytest
import torch
from making import patched

from fib_adapters_flashinfer.mla import MLAAdapter
from fib_adapters_flashinfer.norm import NormAdapter
from fib_adapters_flashinfer.templates import TemplateAdapter, read_apis
from flashinfer_bench.apply import enable_apply, get_runtime
from flashinfer_bench.apply.mapping import stats
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import BuildError, ConfigError, DataError
from flashinfer_bench.routing.patch_manager import Order, PatchManager
from flashinfer_bench.routing.patch_points import router

pytestmark = [pytest.mark.plugin("flashinfer"), pytest.mark.plugin("python")]

H = 32
RMS = f"rmsnorm_h{H}"


@pytest.fixture(autouse=True)
def templates(flashinfer, monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "no-dataset"))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    if not read_apis():
        pytest.skip(f"flashinfer {flashinfer.__version__} has no trace templates")
    yield
    router.clear()


def record(of, code, name="mine", language="python", **spec):
    return {
        "name": name,
        "definition": of,
        "author": "me",
        "spec": {
            "language": language,
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": False,
            **spec,
        },
        "sources": [{"path": "main.py", "content": f"import torch\n\n\n{code}"}],
    }


def chosen(of, code, **more):
    """Have a solution answer inside a block, for a definition that no dataset has."""
    return enable_apply({of: Solution.model_validate(record(of, code, **more))})


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


NORM = """def run(hidden_states, weight):
    x = hidden_states.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    return y.to(hidden_states.dtype)
"""
FUSED = """def run(weight, residual, hidden_states):
    x = hidden_states.float() + residual.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    return y.to(hidden_states.dtype), x.to(residual.dtype)
"""


class TestNorm:
    @pytest.fixture(autouse=True)
    def adapter(self, cpu_norm):
        with patched(NormAdapter()):
            yield

    def test_a_solution_answers_what_it_is_for(self, flashinfer, cpu_norm):
        x, w, out = rows(3, H), rows(H), torch.empty(3, H, dtype=torch.bfloat16)
        expected = flashinfer.norm.rmsnorm(x, w)
        with chosen(RMS, NORM):
            cpu_norm.calls.clear()
            torch.testing.assert_close(flashinfer.norm.rmsnorm(x, w), expected)
            assert flashinfer.norm.rmsnorm(x, w, out=out) is out
            torch.testing.assert_close(out, expected)
            assert flashinfer.norm.rmsnorm(rows(5, H), w).shape == (5, H)
            assert not cpu_norm.calls
            made = get_runtime().definition(RMS)
            flashinfer.norm.rmsnorm(x, w, eps=1e-5)
            flashinfer.norm.rmsnorm(x.half(), w.half())
            flashinfer.norm.rmsnorm(rows(3, 16), w[:16])
            found = stats()["flashinfer.norm.rmsnorm"]
        assert made.const_axes == {"hidden_size": H}
        assert made.inputs["hidden_states"].dtype == "bfloat16"
        assert made.inputs["hidden_states"].param == "input"
        assert found["hit"] == 3
        assert found["fallback"] == 3
        refused = {"eps is not the definition's": 1, "dtype": 1, "not in the mapping": 1}
        assert found["misses"] == refused

    def test_a_first_call_with_another_epsilon_is_the_original_s(self, flashinfer, cpu_norm):
        x, w = rows(3, H), rows(H)
        with chosen(RMS, NORM):
            flashinfer.norm.rmsnorm(x, w, eps=1e-5)
            assert cpu_norm.calls["norm.rmsnorm"] == 1
            flashinfer.norm.rmsnorm(x, w)
            found = stats()["flashinfer.norm.rmsnorm"]
        assert (found["hit"], found["misses"]) == (1, {"eps is not the definition's": 1})

    def test_refused_calls_are_counted_and_nothing_is_said_of_no_call(self, flashinfer, caplog):
        with caplog.at_level(logging.WARNING), chosen(RMS, NORM):
            flashinfer.norm.rmsnorm(rows(0, H), rows(H))
            found = stats()["flashinfer.norm.rmsnorm"]
        assert (found["fallback"], found["misses"]) == (1, {"no rows": 1})
        assert "no call" not in caplog.text

    def test_in_place_and_by_name(self, flashinfer, cpu_norm):
        x, residual, w = rows(3, H), rows(3, H), rows(H)
        expected = x.clone(), residual.clone()
        flashinfer.norm.fused_add_rmsnorm(*expected, w)
        cpu_norm.calls.clear()
        name = f"fused_add_rmsnorm_h{H}"
        with chosen(name, FUSED):
            for _ in range(2):
                mine = x.clone(), residual.clone()
                assert flashinfer.norm.fused_add_rmsnorm(*mine, w) is None
                torch.testing.assert_close(mine, expected)
            made = get_runtime().definition(name)
        assert not cpu_norm.calls
        params = {key: spec.param for key, spec in made.outputs.items()}
        assert params == {"output": "hidden_states", "residual_out": "residual"}

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            (NORM.replace("y.to(", "y[:1].to("), "output 'output' is a tensor of shape"),
            (NORM.replace("    x =", "    raise ZeroDivisionError('mine')\n    x ="), "mine"),
            ("def run(hidden_states)\n", "importing main.py failed"),
            ("def run(x, hidden_states):\n    return x\n", "takes x, hidden_states, but the in"),
        ],
        ids=["shape", "raises", "syntax", "parameters"],
    )
    def test_a_broken_one_raises(self, flashinfer, cpu_norm, code, error):
        with chosen(RMS, code):
            for _ in range(2):
                with pytest.raises((RuntimeError, ZeroDivisionError, BuildError), match=error):
                    flashinfer.norm.rmsnorm(rows(3, H), rows(H))
            assert stats()["flashinfer.norm.rmsnorm"]["error"] == 2
        assert not cpu_norm.calls

    def test_a_name_that_no_template_makes_is_refused_at_once(self):
        with pytest.raises(ConfigError, match="'no_such_h32' is not known, and cannot be created"):
            chosen("no_such_h32", NORM)
        assert router.active == ()

    def test_a_folder_of_solutions_alone(self, flashinfer, tmp_path, monkeypatch):
        folder = tmp_path / "chosen"
        (folder / "solutions" / "deep").mkdir(parents=True)
        text = json.dumps(record(RMS, NORM))
        (folder / "solutions" / "deep" / "mine.json").write_text(text)
        monkeypatch.setenv("FIB_APPLY_PATH", str(folder))
        with enable_apply() as handle:
            flashinfer.norm.rmsnorm(rows(3, H), rows(H))
            assert handle.stats()["flashinfer.norm.rmsnorm"]["hit"] == 1
        (folder / "solutions" / "broken.json").write_text("{")
        with pytest.raises(DataError, match=r"broken\.json"):
            enable_apply()

    def test_flashinfer_s_own_solutions(self, flashinfer, cpu_norm):
        trace = pytest.importorskip("flashinfer.trace")
        if not hasattr(trace, "Solution"):
            pytest.skip("this release has no solutions")
        theirs = trace.Solution.from_dict(record(RMS, NORM))
        x, w = rows(3, H), rows(H)
        expected = flashinfer.norm.rmsnorm(x, w)
        cpu_norm.calls.clear()
        with enable_apply({RMS: theirs}):
            torch.testing.assert_close(flashinfer.norm.rmsnorm(x, w), expected)
        assert not cpu_norm.calls
        with pytest.raises(DataError, match=f"for definition 'rmsnorm_h{H}', not for 'other'"):
            enable_apply({"other": theirs})

    def test_flashinfer_s_own_trace_apply_keeps_the_functions_that_it_has(self, flashinfer):
        own = pytest.importorskip("flashinfer.trace_apply")
        targets = {spec.name: spec for spec in TemplateAdapter().late_targets()}
        manager, make = PatchManager(), TemplateAdapter().make_wrapper
        order = Order("templates", targets["gelu_and_mul"], make)
        assert own.enable_apply({"gelu_and_mul_h32": lambda **_: None}) > 0
        try:
            (status,) = manager.patch_all([order])
        finally:
            own.disable_apply()
        assert status.state == "mismatch"
        assert status.reason.startswith("FlashInfer's own Trace Apply answers its calls")
        assert [each.state for each in manager.patch_all([order])] == ["patched"]
        manager.unpatch_all()


ATTENTION = """import gqa

calls = []


def run({parameters}):
    calls.append(1)
    return gqa.{reference}({given})
"""


class TestAttention:
    @pytest.mark.parametrize("last", ["", "return_lse", "return_lse=False", "**more"])
    @pytest.mark.parametrize("kind", ["decode", "prefill", "ragged"])
    def test_an_attention_answers(self, cpu, kind, last):
        found = gqa.KINDS[kind]
        pages = [] if kind == "ragged" else ["kv_indices", "kv_last_page_len"]
        caches = ["q", "k", "v"] if kind == "ragged" else ["q", "k_cache", "v_cache"]
        queries = [] if kind == "decode" else ["qo_indptr"]
        names = [*caches, *queries, "kv_indptr", *pages[:1], "sm_scale", *pages[1:]]
        code = ATTENTION.format(
            parameters=", ".join(filter(None, [*reversed(names), last])),
            reference=f"{kind}_reference",
            given=", ".join(names),
        )
        with cpu({"ragged": "prefill"}.get(kind, kind)) as kernels:
            tensors = found.tensors()
            wrapper = found.planned()
            expected = wrapper.run(*tensors, return_lse=True)
            kernels.calls.clear()
            with gqa.patched(found.adapter()), chosen(found.definition, code):
                wrapper = found.planned()
                gqa.agree(wrapper.run(*tensors, return_lse=True), expected)
                gqa.agree(wrapper.run(*tensors), expected[0])
                out = torch.empty_like(expected[0])
                assert wrapper.run(*tensors, out=out) is out
                gqa.agree(out, expected[0])
                (counted,) = stats().values()
            ran = [name for name in kernels.calls if not name.endswith("plan")]
        assert (counted["hit"], counted["misses"], ran) == (3, {}, [])

    def test_one_that_ignores_how_full_pages_are_is_refused(self, cpu):
        """With the flag in the place of an input, it would be called with the wrong ones."""
        code = "def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, return_lse=False):\n"
        found = gqa.KINDS["decode"]
        code += "    return q\n"
        with cpu("decode"), gqa.patched(found.adapter()), chosen(found.definition, code):
            wrapper = found.planned()
            with pytest.raises(BuildError, match="kv_last_page_len"):
                wrapper.run(*found.tensors())

    @pytest.mark.parametrize("name", ["mla_paged_prefill_causal_h4_ckv128_kpe64_ps1", "gemm_n4_k4"])
    def test_what_templates_do_not_describe_is_refused_at_once(self, cpu, name):
        from fib_adapters_flashinfer.linear import LinearAdapter

        refusal = pytest.raises(ConfigError, match=r"no trace template|makes no definitions")
        with cpu("mla"), patched(MLAAdapter(), LinearAdapter()), refusal:
            chosen(name, NORM)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.parametrize("page_size", [1, 16])
    def test_latent_attention(self, cpu, page_size):
        name = mla_calls.name_of("decode", page_size)
        names = "q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, sm_scale"
        last = ", kv_last_page_len" if page_size > 1 else ""
        code = f"import mla_calls\n\n\ndef run({names}{last}, return_lse, ckv_scale=None):\n"
        given = "sm_scale, None, kv_last_page_len" if last else "sm_scale"
        code += "    assert return_lse and ckv_scale is None\n"
        code += "    return mla_calls.reference("
        code += f"{names.replace('sm_scale', given)})\n"
        batch = mla_calls.Batch([1, 1], [5, 33], page_size)
        with cpu("mla") as kernels, mla_calls.patched(), chosen(name, code):
            wrapper = batch.planned()
            found = wrapper.run(*batch.tensors, return_lse=True)
            alone = wrapper.run(*batch.tensors)
            (counted,) = stats().values()
        gqa.agree(found, batch.expected())
        gqa.agree(alone, batch.expected()[0])
        assert (counted["hit"], kernels.calls["mla.run"]) == (2, 0)


class TestTemplates:
    @pytest.fixture(autouse=True)
    def adapter(self, flashinfer):
        with patched(TemplateAdapter()):  # of `silu_and_mul`: others are found after the import
            yield

    SILU = "    a, b = input.float().chunk(2, -1)\n    y = (a.sigmoid() * a * b).to(input.dtype)\n"

    @pytest.mark.parametrize("into", [False, True])
    def test_a_function_with_a_template(self, flashinfer, into):
        last = "    output.copy_(y)\n" if into else "    return y\n"
        code = f"def run(input{', output' if into else ''}):\n{self.SILU}{last}"
        name, x = "silu_and_mul_h64", rows(4, 64)
        a, b = x.float().chunk(2, -1)
        expected = (torch.nn.functional.silu(a) * b).bfloat16()
        with chosen(name, code, destination_passing_style=into):
            torch.testing.assert_close(flashinfer.silu_and_mul(x), expected)
            out = torch.empty_like(expected)
            assert flashinfer.silu_and_mul(x, out=out) is out
            torch.testing.assert_close(out, expected)
            assert stats()["flashinfer.activation.silu_and_mul"]["hit"] == 2

    def test_a_dtype_that_no_definition_has_is_said_at_the_call(self, flashinfer):
        code = f"def run(input):\n{self.SILU}    return y\n"
        with chosen("silu_and_mul_h64", code):
            with pytest.raises(ConfigError, match="input 'input' has dtype uint16, which a def"):
                flashinfer.silu_and_mul(torch.zeros(4, 64, dtype=torch.uint16))
            assert stats()["flashinfer.activation.silu_and_mul"]["error"] == 1
