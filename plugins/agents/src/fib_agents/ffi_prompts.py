"""How to write CUDA with TVM FFI, for a language model."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "prompts"

FFI_PROMPT = (_FOLDER / "ffi.md").read_text(encoding="utf-8")
"""Types, calling conventions and rules, with examples that compile."""

FFI_PROMPT_SIMPLE = (_FOLDER / "ffi_simple.md").read_text(encoding="utf-8")
"""The same in one paragraph and one example."""
