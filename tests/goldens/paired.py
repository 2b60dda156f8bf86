"""Time a benchmark with two interpreters in turn: is the new release slower than the old one?

``python tests/goldens/paired.py OLD_PYTHON NEW_PYTHON [-n 9] SCRIPT [ARGUMENTS…]``. The script has
to print JSON. Each number in it that both have is compared: the ratio of the medians (above 1: the
new one's is larger), with a 95 % bootstrap interval over the pairs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

RESAMPLES = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", metavar="OLD_PYTHON")
    parser.add_argument("new", metavar="NEW_PYTHON")
    parser.add_argument("-n", "--pairs", type=int, default=9)
    parser.add_argument("--only", default="", help="only numbers whose name contains this")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = [options.script, *options.arguments]
    old: list[dict[str, float]] = []
    new: list[dict[str, float]] = []
    for number in range(options.pairs):
        # Whoever goes first changes, so that a machine that slows down costs both the same.
        order = [(options.old, old), (options.new, new)]
        for python, runs in order if number % 2 == 0 else reversed(order):
            runs.append(measured(python, command))
        print(f"pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
    report(old, new, options.only)


def measured(python: str, command: list[str]) -> dict[str, float]:
    """Run the benchmark once and return its numbers by their place in the JSON."""
    done = subprocess.run([python, *command], stdout=subprocess.PIPE, text=True, check=True)
    return dict(numbers(json.loads(done.stdout)))


def numbers(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number of some JSON with its place."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from numbers(one, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from numbers(one, f"{place}[{index}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, float(value)


def report(old: list[dict[str, float]], new: list[dict[str, float]], only: str) -> None:
    """Print a line for each number that differs between runs."""
    common = [name for name in old[0] if all(name in run for run in [*old, *new]) and only in name]
    print(f"{'old':>12} {'new':>12} {'ratio':>7}  95 % interval")
    for name in common:
        pairs = [(one[name], other[name]) for one, other in zip(old, new, strict=True)]
        if len({value for pair in pairs for value in pair}) == 1 or any(a <= 0 for a, _ in pairs):
            continue  # a setting, not a measurement
        low, high = interval(pairs)
        before, after = (median(values) for values in zip(*pairs, strict=True))
        mark = " " if low <= 1 <= high else "*"
        ratio = f"{after / before:7.3f}{mark} {low:.3f} to {high:.3f}"
        print(f"{before:12.5g} {after:12.5g} {ratio}  {name}")


def interval(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return a 95 % interval of the ratio of the medians."""
    chance = random.Random(0)
    ratios = []
    for _ in range(RESAMPLES):
        drawn = chance.choices(pairs, k=len(pairs))
        before, after = (median(values) for values in zip(*drawn, strict=True))
        ratios.append(after / before)
    ratios.sort()
    return ratios[int(RESAMPLES * 0.025)], ratios[int(RESAMPLES * 0.975)]


if __name__ == "__main__":
    main()
