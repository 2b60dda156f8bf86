"""The definition ``norm_h8``, its solution and its calls, for tests of mappings."""

from __future__ import annotations

import torch

from fib_tests import definitions
from flashinfer_bench.data import Solution, TraceSet

ROWS = {"shape": ["rows", "hidden"], "dtype": "float32"}
WEIGHT = {"shape": ["hidden"], "dtype": "float32"}
W = torch.ones(8)


def definition(name="norm_h8", inputs=None, outputs=None):
    inputs = inputs or {"x": ROWS, "weight": WEIGHT}
    return definitions.definition(name, inputs, outputs or {"y": ROWS}, hidden=8)


def solution(name="thrice", of="norm_h8", code="def run(x, weight):\n    return 3 * x\n", **spec):
    return Solution.model_validate(
        {
            "name": name,
            "definition": of,
            "author": "me",
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "destination_passing_style": False,
                **spec,
            },
            "sources": [{"path": "main.py", "content": code}],
        }
    )


def dataset(*definitions):
    return TraceSet(definitions={each.name: each for each in definitions or [definition()]})


KNOWN = dataset()


def rows(value=1.0, count=2, hidden=8, **options):
    return torch.full((count, hidden), float(value), **options)


def thrice(x, weight):
    return 3 * x
