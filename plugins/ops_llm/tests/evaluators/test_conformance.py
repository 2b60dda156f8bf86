"""Core's evaluators keep to the contract of evaluators: the suite that plugins are tested with."""

import pytest
import torch
from safetensors.torch import save_file

from fib_testing import EvaluatorCase, EvaluatorConformance
from fib_testing.samples import run_reference
from flashinfer_bench.data import RandomInput, SafetensorsInput, ScalarInput, Workload
from flashinfer_bench.plugins import discover

BUILTIN = "fib_ops_llm"
CATALOG = discover()


def case_of(name, asked, folder, *, fixed=(), **fields):
    """Make a case of a definition and a workload: what is `fixed` comes from a file."""
    given = dict(zip(asked.definition.inputs, asked.trial.inputs, strict=True))
    tensors = {key: given[key].contiguous() for key in fixed}
    if tensors:
        save_file(tensors, folder / "inputs.safetensors")
    inputs = {
        key: SafetensorsInput(path="inputs.safetensors", tensor_key=key)
        if key in fixed
        else (RandomInput() if isinstance(value, torch.Tensor) else ScalarInput(value=value))
        for key, value in given.items()
    }
    return EvaluatorCase(
        record=CATALOG.find("evaluator", name).spec,
        definition=asked.definition,
        workload=Workload(axes=asked.workload.axes, inputs=inputs, uuid="w"),
        root=folder,
        plugin=BUILTIN,
        **fields,
    )


class TestLowBit(EvaluatorConformance):
    @pytest.fixture
    def case(self, moe, tmp_path):
        def zeros_in_a_few_rows(trial, call):
            output = trial.expected[0].clone()
            output[: len(output) // 25] = 0
            return [output]

        wrong = {"zeros in as many places as need not match": zeros_in_a_few_rows}
        return case_of("lowbit", moe, tmp_path, wrong=wrong)


class TestSampling(EvaluatorConformance):
    @pytest.fixture
    def case(self, sampler, tmp_path):
        generator = torch.Generator().manual_seed(0)
        probs = torch.rand(3, 40, generator=generator)
        asked = sampler(probs, top_k=12.0, top_p=0.9)

        def correct(trial, call):
            torch.manual_seed(1000 * trial.index + call)
            return run_reference(asked.definition, trial.inputs)

        def greedy(trial, call):
            return [trial.inputs[0].argmax(dim=1)]

        return case_of(
            "sampling",
            asked,
            tmp_path,
            fixed=("top_k", "top_p"),
            correct=correct,
            wrong={
                "the most probable tokens": greedy,
                "the same samples in each call": lambda trial, call: correct(trial, 0),
                "the least probable tokens": lambda trial, _: [trial.inputs[0].argmin(dim=1)],
            },
            settings={"extra": {"sampling_validation_trials": 60}},
        )


class TestSparseAttention(EvaluatorConformance):
    @pytest.fixture
    def case(self, attention, tmp_path):
        def without_one(trial, call):
            chosen = trial.inputs[4].clone()
            chosen[:, 0] = -1
            inputs = [*trial.inputs[:4], chosen, trial.inputs[5]]
            return run_reference(attention.definition, inputs)

        return case_of(
            "dsa_sparse_attention",
            attention,
            tmp_path,
            fixed=("sparse_indices",),
            wrong={
                "one token less": without_one,
                "another sum": lambda trial, _: [trial.expected[0], trial.expected[1] + 0.05],
                "a finite sum of nothing": lambda trial, _: [
                    trial.expected[0],
                    trial.expected[1].clamp(min=-1e30),
                ],
            },
        )


def with_places(to, of):
    """Return a wrong solution that takes some places of the selection from others."""

    def wrong(trial, call):
        chosen, *others = trial.expected
        chosen = chosen.clone()
        chosen[to] = chosen[of]
        return [chosen, *others]

    return wrong


WRONG = {
    "tokens of another row": with_places(0, 1),
    "a token twice": with_places((slice(None), 0), (slice(None), 1)),
}


class TestFp8Indexer(EvaluatorConformance):
    @pytest.fixture
    def case(self, fp8_indexer, tmp_path):
        return case_of(
            "dsa_topk_indexer",
            fp8_indexer,
            tmp_path,
            fixed=("k_index_cache_fp8", "seq_lens", "block_table"),
            wrong=WRONG,
        )


class TestPlainIndexer(EvaluatorConformance):
    @pytest.fixture
    def case(self, plain_indexer, tmp_path):
        return case_of(
            "dsa_topk_indexer",
            plain_indexer,
            tmp_path,
            fixed=("seq_lens", "page_table"),
            correct=lambda trial, call: [each.flip(-1) for each in trial.expected],
            wrong=WRONG,
        )
