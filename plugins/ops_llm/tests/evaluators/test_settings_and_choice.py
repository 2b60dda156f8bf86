"""Which evaluator judges what, and the settings that evaluators have of their own."""

import pytest

from flashinfer_bench.bench import BenchmarkConfig, resolve_evaluator
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.plugins import discover


def shaped(name, op_type, inputs, outputs):
    """Make a definition with tensors of these element types, all of one axis."""

    def tensors(dtypes):
        return {key: {"shape": ["n"], "dtype": dtype} for key, dtype in dtypes.items()}

    return Definition.model_validate(
        {
            "name": name,
            "op_type": op_type,
            "axes": {"n": {"type": "var"}},
            "inputs": tensors(inputs),
            "outputs": tensors(outputs),
            "reference": "def run(*tensors):\n    return tensors\n",
        }
    )


ATTENTION = {"q_nope": "bfloat16", "ckv_cache": "bfloat16", "sparse_indices": "int32"}
CHOICE = {
    "moe_fp8_block_scale": ("moe", {"x": "float8_e4m3fn"}, {"y": "bfloat16"}, "lowbit"),
    "experts_in_bf16": ("moe", {"x": "bfloat16"}, {"y": "bfloat16"}, "lowbit"),
    "moe_fp4_dequantised": ("moe", {"w": "float32"}, {"y": "bfloat16"}, "lowbit"),
    "gemm_of_fp8": ("gemm", {"a": "float8_e5m2"}, {"c": "float16"}, "lowbit"),
    "gemm_of_fp4": ("gemm", {"a": "bfloat16", "b": "float4_e2m1"}, {"c": "float16"}, "lowbit"),
    "gemm_of_int8": ("gemm", {"a": "int8"}, {"c": "float16"}, "lowbit"),
    "quantize_to_fp8": ("quantize", {"a": "bfloat16"}, {"q": "float8_e4m3fn"}, "default"),
    "like_moe_fp8_block_scale": ("gemm", {"a": "bfloat16"}, {"c": "bfloat16"}, "default"),
    "top_k": ("sampling", {"probs": "float32"}, {"samples": "int64"}, "sampling"),
    "from_logits": ("sampling", {"logits": "float32"}, {"samples": "int32"}, "sampling"),
    "top_k_renorm": ("sampling", {"probs": "float32"}, {"renormed": "float32"}, "default"),
    "sparse": ("dsa_paged", ATTENTION, {"output": "bfloat16"}, "dsa_sparse_attention"),
    "native": ("nsa_paged", ATTENTION, {"output": "bfloat16"}, "dsa_sparse_attention"),
    "index": ("dsa_paged", {"q": "bfloat16"}, {"topk_indices": "int32"}, "dsa_topk_indexer"),
    "index_fp8": (
        *("dsa_paged", {"q": "float8_e4m3fn", "cache": "int8"}),
        *({"topk_indices": "int32"}, "dsa_topk_indexer"),
    ),
    "dense": ("gqa_paged", {"q": "bfloat16"}, {"output": "bfloat16"}, "default"),
    "other_dsa": ("dsa_paged", {"q": "bfloat16"}, {"output": "bfloat16"}, "default"),
}


@pytest.mark.parametrize("name", CHOICE)
def test_an_evaluator_is_chosen_by_what_a_definition_is(name):
    op_type, inputs, outputs, expected = CHOICE[name]
    catalog = discover()
    definition = shaped(name, op_type, inputs, outputs)
    assert resolve_evaluator(definition, catalog=catalog).name == expected


# ------------------------------------------------------------------ settings

OWN = {
    "lowbit": ("lowbit_element_cap", "lowbit_error_budget"),
    "sampling": (
        *("sampling_validation_trials", "sampling_tvd_threshold", "sampling_bias_threshold"),
    ),
    "dsa_sparse_attention": ("dsa_relative_rms",),
    "dsa_topk_indexer": ("dsa_score_slack", "dsa_reference_overlap"),
}
KEYS = [(name, key) for name, keys in OWN.items() for key in keys]


def config_with(**extra):
    definition = shaped("x", "sampling", {"probs": "float32"}, {"samples": "int64"})
    resolved = BenchmarkConfig.default().resolve_eval_config(definition)
    return resolved.model_copy(update={"extra": {**resolved.extra, **extra}})


def evaluator_of(name):
    definition = shaped("x", "gemm", {"a": "float32"}, {"b": "float32"})
    return resolve_evaluator(definition, name)


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_a_value_that_is_not_allowed_is_named(name, key):
    told = rf"extra\.{key}: must be .* above 0|extra\.{key}: .* 1"
    for value in (0, -1, "10", None, True, float("nan"), float("inf"), [1]):
        with pytest.raises(ConfigError, match=told):
            evaluator_of(name).check_settings(config_with(**{key: value}))


def test_the_number_of_calls_comes_from_the_settings():
    sampling = evaluator_of("sampling")
    assert sampling.calls_per_trial(config_with()) == 100
    assert sampling.calls_per_trial(config_with(sampling_validation_trials=7)) == 7
    with pytest.raises(ConfigError, match=r"extra\.sampling_validation_trials"):
        sampling.calls_per_trial(config_with(sampling_validation_trials=2.5))
