"""What the index does not keep of a run, read from its line again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data.index.lean_types import UNUSUAL, decode_run, read_provenance
from flashinfer_bench.data.run_source import RunDetails
from flashinfer_bench.data.samples import from_json as samples_from_json

if TYPE_CHECKING:
    from flashinfer_bench.data.index.columns import Head


def read_details(text: bytes, head: Head) -> Optional[RunDetails]:
    """Read log and samples of a line that was read before.

    Parameters
    ----------
    text : bytes
        The line.
    head : Head
        Whose run it is.

    Returns
    -------
    RunDetails or None
        None if the line is for the models to read, or not the run that was expected.
    """
    try:
        run = decode_run(text)
    except UNUSUAL:
        return None
    if (run.definition, run.solution) != head[:2]:
        return None
    one = run.evaluation
    times = one.performance
    samples = times.samples_ms if times is not None else None
    dropped = tuple(times.dropped or ()) if times is not None else ()
    origin = read_provenance(bytes(one.provenance))
    timing = (origin.timing if origin is not None else None) or {}
    return RunDetails(one.log, tuple(samples_from_json(samples) or ()), dropped, timing)
