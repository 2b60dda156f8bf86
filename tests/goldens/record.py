"""Record a golden: what the installed release does today, to be compared with what comes later.

``python tests/goldens/record.py NAME --output FILE``. The interpreter that runs this is the one
under test; its packages must be installed, and nothing of the repository is imported but data.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

from recorders import apply, cli, exploits, names, traces

RECORDERS = {
    "names": names.record_names,
    "exports": names.record_exports,
    "cli": cli.record,
    "traces": traces.record,
    "apply": apply.record,
    "exploits": exploits.record,
}
ROOT = Path(__file__).resolve().parents[2]


def render(value: Any, margin: str = "", width: int = 100) -> str:
    """Return JSON with sorted keys, in which what fits into a line is on one."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or len(margin + line) <= width:
        return line
    inner = margin + " "
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {render(value[key], inner, width)}"
            for key in sorted(value)
        ]
    else:
        parts = [render(one, inner, width) for one in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f",\n{inner}".join([f"{first}\n{inner}{parts[0]}", *parts[1:]]) + f"\n{margin}{last}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RECORDERS)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="repository with the examples and the exploits"
    )
    parser.add_argument(
        "--runs",
        type=int,
        help="how often it is recorded: what differs is left out (traces, cli)"
        " or the majority counts (exploits)",
    )
    parser.add_argument(
        "--reports",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="exploits: what 'python -m tests.exploits.run --json' has printed, instead of runs",
    )
    options = parser.parse_args()
    began = time.monotonic()
    given = {"runs": options.runs, "reports": options.reports}
    wanted = {name: value for name, value in given.items() if value is not None}
    golden = RECORDERS[options.name](options.root.resolve(), **wanted)
    text = render(golden)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write = gzip.open if options.output.suffix == ".gz" else open
    with write(options.output, "wt", encoding="utf-8") as file:
        file.write(text + "\n")
    took = time.monotonic() - began
    print(f"{options.output}: {len(golden)} entries in {took:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
