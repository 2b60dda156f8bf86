"""Names for builds: made from everything that the result of a build depends on."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from flashinfer_bench.data import BuildSpec, Definition, Solution

_SLUG_LENGTH = 24


def declared_style(spec: BuildSpec) -> Optional[bool]:
    """Return `destination_passing_style` where the solution states it, else None.

    A file that leaves the field out reads as True, the default of the format. Yet the Python and
    Triton solutions that leave it out return their values: for them None means "look at the
    signature", see `choose_style`.
    """
    if "destination_passing_style" not in spec.model_fields_set:
        return None
    return spec.destination_passing_style


def content_digest(definition: Definition, solution: Solution, *extra: object) -> str:
    """Return a digest of all that a build depends on.

    Parameters
    ----------
    definition : Definition
        Its name, axes, inputs, outputs and constraints count; descriptions and tags do not.
    solution : Solution
        Its sources and build specification count, and whether it states its calling convention.
        Its name, author and description do not.
    *extra : object
        Whatever else counts, such as the builder, a compiler's version, or a GPU architecture.

    Returns
    -------
    str
        64 hexadecimal digits: a SHA-256, never shortened.
    """
    parts = {
        "definition": _signature_of(definition),
        "solution": solution.hash(),
        "style": declared_style(solution.spec),
        "extra": [str(part) for part in extra],
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _signature_of(definition: Definition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "axes": {name: getattr(axis, "value", None) for name, axis in definition.axes.items()},
        # Lists, because the order of arguments counts.
        "inputs": [(name, spec.shape, spec.dtype) for name, spec in definition.inputs.items()],
        "outputs": [(name, spec.shape, spec.dtype) for name, spec in definition.outputs.items()],
        "constraints": list(definition.constraints),
    }


def package_name(prefix: str, solution: Solution, digest: str) -> str:
    """Return a name for a build that is a valid Python identifier and a valid file name.

    Parameters
    ----------
    prefix : str
        What the builder puts in front of all its names.
    solution : Solution
        Its name is kept, shortened, so that a person can tell builds apart.
    digest : str
        What tells them apart for certain; see `content_digest`.
    """
    slug = re.sub(r"[^a-z0-9]+", "_", solution.name.lower()).strip("_")[:_SLUG_LENGTH]
    name = "_".join(part for part in (prefix, slug.strip("_"), digest) if part)
    return name if name.isidentifier() else f"_{name}"
