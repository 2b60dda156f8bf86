"""From looking for tools to the answer of a probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.plugins import Availability


def availability(*checks: Callable[[], Any]) -> Availability:
    """Return whether all of `checks` find what they look for.

    Parameters
    ----------
    *checks : callable
        `find_cxx`, `cuda_architectures`, or functions of your own. They return what they found, to
        be shown to the user (None: nothing to show), and raise `CapabilityError` otherwise.

    Returns
    -------
    Availability
        What was found, or the first thing that is missing.
    """
    from flashinfer_bench.plugins import Availability

    found = []
    for check in checks:
        try:
            thing = check()
        except CapabilityError as error:
            return Availability(ok=False, reason=error.message, remedy=error.hint or "")
        except ValueError as error:  # a variable has a value that is not allowed
            return Availability(ok=False, reason=str(error))
        found.append(" ".join(map(str, thing)) if isinstance(thing, (tuple, list)) else thing)
    return Availability(ok=True, reason=", ".join(str(thing) for thing in found if thing))
