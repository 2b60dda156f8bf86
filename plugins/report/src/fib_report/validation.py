"""Saved reports of ``fib validate``: reading them, and converting them to HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fib_report.page.document import as_document, tile
from fib_report.page.markup import Markup, element, join
from flashinfer_bench import __version__
from flashinfer_bench.data.base import SchemaModel
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.errors import ConfigError, DataError
from flashinfer_bench.validate.records import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SCHEMA_VERSION = 1
MOST_SHOWN = 2_000  # findings of one severity in a page, so that phones can open it

# With the colours of statuses in the report page.
_HEADINGS = {
    Severity.ERROR: ("errors", "st-runtime-error"),
    Severity.WARNING: ("warnings", "st-incorrect-shape"),
    Severity.NOTE: ("notes", "st-timeout"),
}


class SavedDataset(SchemaModel):
    """Findings about one dataset."""

    root: str
    layers: list[str]
    counts: dict[str, int]
    errors: int
    warnings: int
    notes: int
    findings: list[Finding]


class ReportVersion(SchemaModel):
    """The field that reports of all versions have."""

    schema_version: int


class SavedReport(ReportVersion):
    """A report of ``fib validate --json``."""

    datasets: list[SavedDataset]


def read_validation(path: Path) -> list[dict[str, Any]]:
    """Read a report of ``fib validate --json`` or ``--outputs json``.

    Returns
    -------
    list of dict
        The datasets of the report; their ``findings`` are of the class `Finding`.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has an unsupported version.
    DataError
        If it is not such a report.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        version = decode(ReportVersion, text, path=path).schema_version
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"{path} has format version {version}; supported version: {SCHEMA_VERSION}",
                hint="use the release that wrote it, or run 'fib validate' again",
            )
        report = decode(SavedReport, text, path=path)
    except DataError as error:
        error.hint = "give a file written by 'fib validate --outputs json'"
        raise
    return [dict(one) for one in report.datasets]


def validation_page(datasets: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML page about validated datasets.

    Parameters
    ----------
    datasets : sequence of dict
        As `read_validation` returns them.

    Returns
    -------
    str
        A self-contained HTML document without scripts.
    """
    body = element(
        "body",
        element("header", element("h1", "Validation")),
        element("main", *(part for one in datasets for part in _dataset(one))),
        element("footer", f"Made by flashinfer-bench {__version__}."),
    )
    return as_document("Validation", body)


def _dataset(one: Mapping[str, Any]) -> Iterator[Markup]:
    seen = ", ".join(f"{count:,} {noun}" for noun, count in one["counts"].items())
    yield element("h2", element("bdi", str(one["root"])))
    yield element("p", f"{seen}; layers: {', '.join(one['layers'])}", class_="note")
    numbers = (tile(noun.capitalize(), f"{one[noun]:,}") for noun, _ in _HEADINGS.values())
    yield element("section", *numbers, class_="tiles")
    for severity, (noun, colour) in _HEADINGS.items():
        found = [each for each in one["findings"] if each.severity is severity]
        if not found:
            continue
        yield element("h3", element("span", class_=f"swatch {colour}"), f" {noun.capitalize()}")
        yield element("dl", *map(_finding, found[:MOST_SHOWN]), class_="findings")
        if len(found) > MOST_SHOWN:
            more = f"… and {len(found) - MOST_SHOWN:,} more; see the JSON report."
            yield element("p", more, class_="note")


def _finding(found: Finding) -> Markup:
    hint = element("p", found.hint, class_="note") if found.hint else None
    place = element("b", element("bdi", found.where))
    return join(
        [element("dt", found.check), element("dd", place, element("p", found.message), hint)]
    )
