"""Engines in small: the calls that SGLang and vLLM make of FlashInfer, in their order and forms.

`sglang_like` and `vllm_like` stand for engine code: they know FlashInfer and torch, and nothing of
ours. `drive` is the program that runs one of them: as it is, with everything enabled, and again
with everything disabled.
"""
