"""What the user reads when a look-up finds nothing: what there is, what went wrong, what to do."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins.settings import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.plugins.catalog import Catalog, Conflict
    from flashinfer_bench.plugins.registered import Registered
    from flashinfer_bench.plugins.status import PluginStatus

CONFLICT_HINT = "Uninstall one of them, or name its plugin in FIB_DISABLE_PLUGINS."


def conflict(kind: str, name: str, origins: Sequence[str]) -> str:
    """Say that several distributions claim one name."""
    return (
        f"{spoken(kind).capitalize()} {name!r} is registered by {_and(origins)}; "
        f"{'both' if len(origins) == 2 else 'all of them'} are refused."
    )


def takes_part(kind: str, name: str, others: Sequence[str]) -> str:
    """Say of one plugin, after its name, that it claims what `others` claim."""
    if not others:
        return f"registers {spoken(kind)} {name!r} more than once; all of them are refused"
    verdict = "both" if len(others) == 1 else "all of them"
    return f"registers {spoken(kind)} {name!r}, as does {_and(others)}; {verdict} are refused"


def broken(status: PluginStatus) -> str:
    """Return the warning about a broken plugin."""
    return f"{status.sentence().rstrip('.')}. Run `fib plugins doctor {status.name}`."


def not_found(catalog: Catalog, kind: str, name: str) -> CapabilityError:
    """Make the error for a name that no record has."""
    names = [entry.name for entry in catalog.entries(kind)]
    parts = [f"No {spoken(kind)} {name!r}."]
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        parts.append(f"Did you mean {near[0]!r}?")
    parts.append(f"There are: {', '.join(names) or 'none'}.")
    return _error(catalog, parts, name, kind)


def no_builder(
    catalog: Catalog,
    language: str,
    binding: Optional[str],
    solution: Optional[str],
    conflicts: Sequence[Conflict],
) -> CapabilityError:
    """Make the error for a language, or a binding of it, that no builder handles."""
    parts = [f"No builder {builder_subject(language, binding, solution)}."]
    bindings = {
        b or "none" for e in catalog.builders for lang, b in e.spec.handles if lang == language
    }
    if bindings:
        parts.append(f"Bindings of {language!r} that can be built: {', '.join(sorted(bindings))}.")
    catalog.check_all(catalog.builders)
    usable = [entry for entry in catalog.builders if entry.availability()]
    languages = sorted({lang for entry in usable for lang, _ in entry.spec.handles})
    parts.append(f"Available: {', '.join(languages) or 'none'}.")
    return _error(catalog, parts, language, "builder", conflicts)


def builder_subject(language: str, binding: Optional[str], solution: Optional[str]) -> str:
    """Return what a builder is looked for: ``for language 'mojo' (solution 'x')``."""
    subject = f"for language {language!r}"
    if binding is not None:
        subject += f" with binding {binding!r}"
    return subject + (f" (solution {solution!r})" if solution is not None else "")


def nothing_for(
    catalog: Catalog, kind: str, subject: str, conflicts: Sequence[Conflict]
) -> CapabilityError:
    """Make the error for a task that no record of `kind` is meant for."""
    names = [entry.name for entry in catalog.entries(kind)]
    parts = [f"No {spoken(kind)} {subject}.", f"There are: {', '.join(names) or 'none'}."]
    return _error(catalog, parts, "", kind, conflicts)


def none_usable(kind: str, subject: str, candidates: Sequence[Registered[Any]]) -> CapabilityError:
    """Make the error for records that would do, of which none can be used on this machine."""
    parts = [f"No {spoken(kind)} {subject} can be used on this machine."]
    parts += [_unavailable(entry) for entry in candidates]
    remedies = dict.fromkeys(entry.availability().remedy for entry in candidates)
    return CapabilityError(" ".join(parts), hint="; ".join(filter(None, remedies)) or None)


def no_usable_builder(
    subject: str,
    unusable: Sequence[Registered[Any]],
    elsewhere: Sequence[Registered[Any]],
    device: Optional[str],
) -> CapabilityError:
    """Make the error for a language whose builders cannot be used here, or not for `device`."""
    if unusable:
        found = none_usable("builder", subject, unusable)
        parts, hint = [found.message], found.hint
    else:
        parts, hint = [f"No builder {subject} is for device {device!r}."], None
    parts += [f"{e.name} ({e.origin}) is for {', '.join(e.spec.devices)}." for e in elsewhere]
    devices = dict.fromkeys(each for entry in elsewhere for each in entry.spec.devices)
    other = f"choose another device, such as {next(iter(devices))}" if devices else None
    return CapabilityError(" ".join(parts), hint=hint or other)


def wrong_device(catalog: Catalog, entry: Registered[Any], device: str) -> CapabilityError:
    """Make the error for a named record that is not for the device."""
    kind = entry.spec.kind
    fitting = [each.name for each in catalog.entries(kind) if device in each.spec.devices]
    return CapabilityError(
        f"{spoken(kind).capitalize()} {entry.name!r} is for {', '.join(entry.spec.devices)}, "
        f"not for {device!r}. For {device!r} there are: {', '.join(fitting) or 'none'}."
    )


def spoken(kind: str) -> str:
    """Return `kind` as one says it: ``key builder``."""
    return kind.replace("_", " ")


def _unavailable(entry: Registered[Any]) -> str:
    reason = entry.availability().reason.rstrip(".")
    return f"{entry.name} ({entry.origin}): {reason}."


def _error(
    catalog: Catalog,
    parts: list[str],
    wanted: str,
    kind: str,
    conflicts: Sequence[Conflict] = (),
) -> CapabilityError:
    """Add to `parts` whose fault it may be that nothing was found, and what to do about it."""
    if conflicts:
        parts += [each.sentence() for each in conflicts]
        return CapabilityError(" ".join(parts), hint=CONFLICT_HINT)
    missing = [status for status in catalog.plugins if status.state in ("broken", "blocked")]
    related = [status for status in missing if wanted and _related(status, wanted)]
    parts += [status.sentence().rstrip(".") + "." for status in related]
    suspects = related or [status for status in missing if status.state == "broken"]
    if suspects and not related:
        origins = ", ".join(status.origin for status in suspects)
        parts.append(f"Broken plugins, which might have provided it: {origins}.")
    return CapabilityError(" ".join(parts), hint=_hint(suspects, kind))


def _hint(suspects: Sequence[PluginStatus], kind: str) -> str:
    broken = [status.name for status in suspects if status.state == "broken"]
    if broken:
        return f"Run `fib plugins doctor{' ' + broken[0] if len(broken) == 1 else ''}`."
    return f"Run `fib plugins list --kind {kind}` to see what is installed."


def _related(status: PluginStatus, wanted: str) -> bool:
    """Return whether `wanted` is a part of the plugin's or its distribution's name."""
    needle = f"-{canonical(wanted)}-"
    names = (status.name, status.distribution, status.target)
    return any(needle in f"-{canonical(name)}-" for name in names)


def _and(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
