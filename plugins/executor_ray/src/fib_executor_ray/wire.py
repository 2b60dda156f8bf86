"""What drivers and nodes send each other: JSON text, never pickled objects."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashinfer_bench import errors
from flashinfer_bench.bench.builds import BuildOutcome, outcome_of
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.executors import base

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.bench.plan import Build

# What belongs to the driver.
_NOT_SENT = {"executor", "device", "definitions", "solutions", "log_level"}
_ERRORS = ("RunnerFatalError", "CapabilityError", "DataError", "ConfigError", "RunnerError")
_CANDIDATE_ERRORS = {
    "CandidateFailed": ("stage", "kind", "traceback", "about", "builder"),
    "CandidateCrashed": ("stage", "exit_code"),
    "CandidateTimeout": ("stage",),
    "CandidateMisbehaved": ("stage",),
}


def pack_config(config: BenchmarkConfig) -> dict[str, Any]:
    """Return settings as JSON values, in two layers: those that definitions override, and not."""
    values = config.model_dump(mode="json")
    given = {name: values[name] for name in config.model_fields_set - _NOT_SENT}
    explicit = config.explicit_fields
    return {
        "explicit": {name: value for name, value in given.items() if name in explicit},
        "default": {name: value for name, value in given.items() if name not in explicit},
    }


def unpack_config(packed: Mapping[str, Any]) -> BenchmarkConfig:
    """Return the settings of `pack_config`."""
    with tempfile.TemporaryDirectory(prefix="fib-fleet-") as folder:
        path = Path(folder) / "settings.yaml"
        path.write_text(json.dumps(packed["default"]), encoding="utf-8")  # which is YAML
        return BenchmarkConfig.from_yaml(path, **packed["explicit"])


def pack_error(error: errors.FibError) -> dict[str, Any]:
    """Return an error as JSON values: the class that matters, and its text."""
    kinds = (name for name in _ERRORS if isinstance(error, getattr(errors, name)))
    return {"kind": next(kinds, "RunnerError"), "message": error.message, "hint": error.hint}


def unpack_error(packed: Mapping[str, Any], where: str) -> errors.FibError:
    """Return the error of `pack_error`; the message names the place."""
    kind = packed["kind"] if packed["kind"] in _ERRORS else "RunnerError"
    made: errors.FibError = getattr(errors, kind)(
        f"{where}: {packed['message']}", hint=packed["hint"]
    )
    return made


def pack_outcome(outcome: BuildOutcome) -> str:
    """Return what came of a build as JSON."""
    packed = {name: getattr(outcome, name) for name in ("builder", "fresh", "seconds", "output")}
    error = outcome.error
    if error is not None:
        kind = type(error).__name__
        names = _CANDIDATE_ERRORS.get(kind, ("stage",))
        packed["error"] = {
            "class": kind,
            "message": error.message,
            **{name: getattr(error, name) for name in names},
        }
    return json.dumps(packed)


def unpack_outcome(build: Build, text: str) -> BuildOutcome:
    """Return the outcome of `pack_outcome`."""
    packed = json.loads(text)
    if (error := packed.pop("error", None)) is not None:
        kind = error.pop("class")
        named = kind if kind in _CANDIDATE_ERRORS else "CandidateError"
        packed["error"] = getattr(base, named)(error.pop("message"), **error)
    return outcome_of(build, **packed)
