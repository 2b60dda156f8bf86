"""Making a route from a call that went well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch.devices import is_current
from flashinfer_bench.apply.dispatch.ordinary import facts
from flashinfer_bench.apply.dispatch.recognition import Recognition, recogniser, recogniser_of
from flashinfer_bench.apply.dispatch.routes import always

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.apply.dispatch.entries import Entry
    from flashinfer_bench.apply.dispatch.layout import Layout
    from flashinfer_bench.apply.dispatch.routes import Route
    from flashinfer_bench.apply.dispatch.runs import Run

    Switch = Callable[[], bool]


def learn(
    by: Recognition, layout: Layout, entry: Entry, run: Run, args: Sequence[Any], result: Any
) -> Optional[Route]:
    """Return a route for calls like one that a solution has answered.

    Parameters
    ----------
    by : Recognition
        How calls are recognised.
    layout : Layout
        Of the definition.
    entry : Entry
        Who has answered it.
    run : Run
        How it was called.
    args : sequence
        With what; the guard has let it through.
    result : Any
        Outputs in declaration order if ``run.checks``, else whatever came back.

    Returns
    -------
    tuple or None
        See `routes`. None if such calls cannot be recognised, or were made in a way that must be
        decided upon each time.
    """
    inputs = len(layout.inputs)
    tensors = [args[index] for index in layout.tensors] + list(args[inputs:])
    written = [layout.tensors.index(index) for index in sorted(layout.mutated)]
    check = recogniser(by, tensors, [*written, *range(len(layout.tensors), len(tensors))])
    current = is_current(tensors[0].device) if tensors else None
    if check is None or (current is not None and not current()):
        return None
    extra = _extra(by, entry, tensors, current)
    good = recogniser_of(by, result) if run.checks else always
    spans = tuple(each.numel() * each.element_size() for each in tensors)
    return (check, extra, run.function, good, spans, entry)


def _extra(
    by: Recognition, entry: Entry, tensors: Sequence[Any], current: Optional[Switch]
) -> Optional[Switch]:
    """Return what else must be asked at each call: only what can be otherwise."""
    questions: list[Switch] = []
    if not by.sees_all and any(each.requires_grad for each in tensors):
        enabled = facts().grad_enabled
        questions.append(lambda: not enabled())
    if current is not None:
        questions.append(current)
    if entry.sampled:
        questions.append(lambda: not entry.draw())
    if len(questions) > 1:
        return lambda: all(question() for question in questions)
    return questions[0] if questions else None
