"""The plugin and its builder meet the requirements of FlashInfer-Bench."""

from __future__ import annotations

import pytest
from flashinfer_bench.testing import (
    BuilderCase,
    BuilderConformance,
    FailingSolution,
    PluginConformance,
    make_solution,
    sample_definition,
)

import fib_builder_example

SIGNATURE = "void run(const float *x, const float *y, float scale, float *out, int64_t tokens)"
SOURCE = f"""#include <stdint.h>

{SIGNATURE}
{{
    for (int64_t i = 0; i < tokens * AXIS_hidden; i++)
        out[i] = (x[i] + y[i]) * scale;
}}
"""


class TestExamplePlugin(PluginConformance):
    @pytest.fixture
    def case(self):
        return "fib_builder_example"


class TestExampleBuilder(BuilderConformance):
    @pytest.fixture
    def case(self):
        definition = sample_definition()

        def solve(source, **spec):
            return make_solution(
                definition,
                {"main.c": source},
                "main.c::run",
                language="c",
                **spec,
            )

        (record,) = fib_builder_example.fib_register_builders()
        return BuilderCase(
            record=record,
            definition=definition,
            solution=solve(SOURCE, destination_passing_style=True),
            twin=solve(SOURCE.replace("x[i] + y[i]", "x[i] - y[i]")),
            failing=(
                FailingSolution(
                    solution=solve(SOURCE.replace("int64_t tokens", "int tokens")),
                    expect="conflicting types",
                ),
                FailingSolution(
                    solution=solve(SOURCE, destination_passing_style=False),
                    expect="outputs as arguments",
                ),
            ),
        )
