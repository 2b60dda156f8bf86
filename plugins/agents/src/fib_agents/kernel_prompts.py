"""Prompts: how to write a kernel for a definition in a language, and what the judge checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashinfer_bench.errors import UnknownNameError

if TYPE_CHECKING:
    from flashinfer_bench.data import Definition, TensorSpec

_FOLDER = Path(__file__).parent / "prompts"

FFI_PROMPT = (_FOLDER / "ffi.md").read_text(encoding="utf-8")
"""How to write CUDA with TVM FFI: types, conventions and rules, with examples that compile."""

FFI_PROMPT_SIMPLE = (_FOLDER / "ffi_simple.md").read_text(encoding="utf-8")
"""The same in one paragraph and one example."""

LANGUAGES = {
    "cuda": ("CUDA C++", "cuda.md"),
    "triton": ("Triton", "triton.md"),
    "cute-style": ("CUDA C++ with CuTe", "cute-style.md"),
    "tilelang": ("TileLang", "tilelang.md"),
    "python": ("Python with torch", "python.md"),
}
"""Title and text of each language."""


def prompt_for(definition: Definition, language: str) -> str:
    """Return the prompt to write a kernel.

    Parameters
    ----------
    definition : Definition
        What to compute.
    language : str
        One of `LANGUAGES`.

    Raises
    ------
    UnknownNameError
        If there is no prompt for the language.
    """
    if language not in LANGUAGES:
        raise UnknownNameError.of("prompt", [language], LANGUAGES)
    title, file = LANGUAGES[language]
    task = f"Write the fastest correct kernel for the definition below, in {title}."
    parts = [task, _described(definition), _text("judge.md"), _text(file)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _text(file: str) -> str:
    return (_FOLDER / file).read_text(encoding="utf-8")


def _described(definition: Definition) -> str:
    """Return a definition as text: what each argument is, and the reference."""
    axes: dict[str, Any] = definition.axes
    lines = [f"# Definition {definition.name} ({definition.op_type})", ""]
    lines += [definition.description, ""] if definition.description else []
    for name, axis in axes.items():
        value = getattr(axis, "value", None)
        told = "set by each workload" if value is None else f"constant: {value}"
        lines.append(f"- axis `{name}`: {told}{_of(axis)}")
    for kind, tensors in (("input", definition.inputs), ("output", definition.outputs)):
        lines += [f"- {kind} `{name}`: {_shape(one)}{_of(one)}" for name, one in tensors.items()]
    lines += [f"- always: `{one}`" for one in definition.constraints or ()]
    tolerance = definition.tolerance
    if tolerance is not None:
        given = tolerance.model_dump(mode="json", exclude_none=True)
        lines.append(f"- tolerance: `{json.dumps(given)}`")
    arguments = ", ".join((*definition.inputs, *definition.outputs))
    lines += ["", f"With destination passing, the function is `run({arguments})`; otherwise"]
    lines += [
        f"`run({', '.join(definition.inputs)})`. The reference, which is right by definition:"
    ]
    return "\n".join([*lines, "", "```python", definition.reference.rstrip(), "```"])


def _shape(tensor: TensorSpec) -> str:
    if tensor.shape is None:
        return f"scalar of {_name(tensor.dtype)}"
    return f"{_name(tensor.dtype)}[{', '.join(map(str, tensor.shape))}]"


def _name(dtype: Any) -> str:
    return str(getattr(dtype, "value", dtype))


def _of(record: Any) -> str:
    return f"; {record.description}" if getattr(record, "description", None) else ""
