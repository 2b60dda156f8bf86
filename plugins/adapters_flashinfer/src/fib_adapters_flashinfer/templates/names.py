"""What FlashInfer calls a definition: by a template, and the sizes of its constant axes.

The rule is that of FlashInfer's own `TraceTemplate.definition_name`, which releases before 0.6.14
lack: the prefix (or the family of the computation), then each constant axis in order, as its
abbreviation and its size. An axis without an abbreviation of its own goes by its name; one whose
abbreviation is empty is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_DATASET = {
    "moe_fp8_block_scale_renormalize_routing_topk": "moe_fp8_block_scale_renorm_topk",
    "top_k_sampling_v": "top_k_sampling_from_probs_v",
    "top_p_sampling_v": "top_p_sampling_from_probs_v",
    "top_k_top_p_sampling_v": "top_k_top_p_sampling_from_probs_v",
}
"""How names begin that the public dataset has for the same inputs, by how FlashInfer's begin."""


def is_const(axis: Any) -> bool:
    """Return whether an axis of a template is constant: it has an abbreviation, if only None."""
    return hasattr(axis, "abbrev")


def fixed_size(axis: Any) -> int | None:
    """Return the size that a template prescribes for an axis, if it does."""
    return getattr(axis, "value", None)


def name_parts(template: Any) -> list[tuple[str, str]]:
    """Return the axes that are part of the name, each with what stands before its size."""
    parts = []
    for name, axis in template.axes.items():
        if is_const(axis) and axis.abbrev != "":
            parts.append((name, name if axis.abbrev is None else axis.abbrev))
    return parts


def prefix_of(template: Any) -> str:
    """Return how all names of a template begin."""
    prefix = template.name_prefix
    return str(template.op_type if prefix is None else prefix)


def definition_name(template: Any, sizes: Mapping[str, int]) -> str:
    """Return the name of a definition.

    Parameters
    ----------
    template : TraceTemplate
        FlashInfer's.
    sizes : mapping of str to int
        Of all axes that `name_parts` lists.
    """
    parts = [f"{short}{sizes[axis]}" for axis, short in name_parts(template)]
    return "_".join([prefix_of(template), *parts])


def patterns(template: Any) -> tuple[str, ...]:
    """Return patterns of all definitions that calls may be of, as in file names."""
    name = "_".join([prefix_of(template), *(f"{short}*" for _, short in name_parts(template))])
    return (name, *aliases(name))


def aliases(name: str) -> tuple[str, ...]:
    """Return what the public dataset calls a definition, where its inputs are the same."""
    found = (
        dataset + name[len(ours) :] for ours, dataset in _DATASET.items() if name.startswith(ours)
    )
    return tuple(found)
