"""What is known about a built solution."""

from __future__ import annotations

from typing import Any, Optional

from pydantic import BaseModel, Field

from flashinfer_bench.data import Definition


class RunnableMetadata(BaseModel):
    """How a `Runnable` came about.

    Parameters
    ----------
    build_type : str
        The kind of build: ``python``, ``triton``, ``tvm_ffi``, ``torch``, …
    definition_name : str
        The definition whose interface it has.
    solution_name : str
        The solution that it was built from. Solutions that differ in nothing but their name share
        one Runnable, which has the name of the first.
    destination_passing_style : bool
        Whether it takes its outputs as arguments.
    definition : Definition, optional
        The definition itself; needed for calls by name, and for turning one convention into the
        other.
    misc : dict
        Whatever the builder adds.
    """

    build_type: str
    definition_name: str
    solution_name: str
    destination_passing_style: bool = True
    definition: Optional[Definition] = None
    misc: dict[str, Any] = Field(default_factory=dict)
