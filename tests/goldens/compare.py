"""Compare two recorded goldens: ``python tests/goldens/compare.py OLD NEW``.

Prints what is gone (-), new (+) or other (~), and exits with 1 if anything is.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


DIFFERS = "<differs>"  # stands for what is not the same in each run of one release


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Yield a line, or several, about each place where two values differ."""
    if (old == new and type(old) is type(new)) or DIFFERS in (old, new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        if "also" in old and new.get("end") in (old["end"], *old["also"]):
            return  # an exploit that ends now so, now so
        for key in [*old, *(key for key in new if key not in old)]:
            place = f"{where}.{key}" if where else key
            if key not in new:
                yield f"- {place}: {_short(old[key])}"
            elif key not in old:
                yield f"+ {place}: {_short(new[key])}"
            else:
                yield from differences(old[key], new[key], place)
    elif _is_text(old) and _is_text(new):
        diff = list(difflib.unified_diff(old, new, lineterm="", n=1))[2:]
        yield "\n    ".join([f"~ {where}:", *diff])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    else:
        yield f"~ {where}: {_short(old)} -> {_short(new)}"


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _short(value: Any, most: int = 160) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}…"


def _read(path: Path) -> dict[str, Any]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return dict(json.load(file))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--most", type=int, default=5, help="lines for one entry; 0: all")
    options = parser.parse_args()
    old, new = _read(options.old), _read(options.new)
    changed = 0
    for key in sorted({*old, *new}):
        parts = {
            side: {key: each[key]} if key in each else {}
            for side, each in (("old", old), ("new", new))
        }
        found = list(differences(parts["old"], parts["new"]))
        changed += bool(found)
        shown = found[: options.most or None]
        for line in shown:
            print(line)
        if len(found) > len(shown):
            print(f"  … and {len(found) - len(shown)} more in {key}")
    print(f"{changed} of {len({*old, *new})} entries differ", file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
