"""The rules there are, by name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.stopping.entropy import Entropy
from flashinfer_bench.bench.stopping.fixed import Fixed
from flashinfer_bench.bench.stopping.rse import RelativeStandardError
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flashinfer_bench.bench.stopping.base import StoppingRule

RULES: dict[str, type[StoppingRule]] = {
    rule.name: rule for rule in (Fixed, RelativeStandardError, Entropy)
}


def rule_of(name: str, params: Mapping[str, Any]) -> StoppingRule:
    """Return the named rule with its parameters set.

    Parameters
    ----------
    name : str
        One of `RULES`.
    params : mapping
        Values, numbers or their text, by name of the parameter; others keep their defaults.

    Raises
    ------
    ConfigError
        If the rule or a parameter is not known, or a value not allowed.
    """
    kind = _kind(name)
    declared = {one.name: one for one in kind.parameters()}
    for key in params:
        if key not in declared:
            raise _unknown_parameter(name, key, declared)
    return kind(**{key: declared[key].parse(value) for key, value in params.items()})


def require_rule(name: str) -> None:
    """Raise `ConfigError` if there is no such rule."""
    _kind(name)


def require_parameters(name: Optional[str], params: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the parameters do not fit the rule; None: if they fit no rule."""
    if name is not None:
        rule_of(name, params)
        return
    known = {one.name for rule in RULES.values() for one in rule.parameters()}
    for key in params:
        if key not in known:
            raise ConfigError(
                f"no stop rule has a parameter {key!r}", hint=_near(key, sorted(known))
            )


def described() -> Iterator[str]:
    """Yield a line for each rule, and indented ones for its parameters: for ``--help``."""
    for rule in RULES.values():
        yield f"{rule.name}: stop {rule.summary}."
        for one in rule.parameters():
            setting = f"{one.name}={one.default:g}"
            yield f"  {setting:<16} {one.help}"


def _kind(name: str) -> type[StoppingRule]:
    if name not in RULES:
        raise ConfigError(f"there is no stop rule {name!r}", hint=_near(name, RULES))
    return RULES[name]


def _unknown_parameter(rule: str, key: str, declared: Iterable[str]) -> ConfigError:
    own = sorted(declared)
    owners = [
        other.name for other in RULES.values() if key in {one.name for one in other.parameters()}
    ]
    message = f"stop rule {rule!r} has no parameter {key!r}"
    if owners:
        return ConfigError(message, hint=f"{key!r} belongs to the rule {' and '.join(owners)}")
    return ConfigError(message, hint=_near(key, own) if own else "it has none")


def _near(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
