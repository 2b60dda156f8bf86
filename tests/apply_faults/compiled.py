"""A dataset with a compiled solution, and a compiler that can be told to die at its work."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.apply_faults import channel
from tests.apply_faults.drive import difference, enable, fallback_of
from tests.apply_faults.problems import Argument, Problem, expected, make_inputs, make_outputs
from tests.apply_faults.world import Made, Record, World

if TYPE_CHECKING:
    from pathlib import Path

CPP = """
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

static void Copy(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const auto* from = static_cast<const float*>(x.data_ptr());
  auto* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.size(0) * x.size(1); ++i) to[i] = from[i];
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Copy)
"""
PROBLEM = Problem(
    "copied", "op", (("N", None), ("C", 4)), (Argument("x0", ("N", "C"), "float32"),), ("y0",)
)
COMPILED_ROWS, PYTHON_ROWS, OTHER_ROWS = 2, 4, 6
"""Who wins: the compiled solution, the one in Python, nobody."""

MOMENTS = ("compiling", "linking")

# It leaves rubbish where its output should be. "all": it takes the process that wants it along.
_COMPILER = """#!/bin/sh
step=linking
for each in "$@"; do
  case "$each" in *.cpp) step=compiling ;; esac
  case "$each" in --version|-dump*) exec c++ "$@" ;; esac
  [ "$before" = -o ] && output="$each"
  before="$each"
done
echo "$step" >> {folder}/steps
if [ "$step" = "$(cat {folder}/dies)" ]; then
  echo rubbish > "$output"
  [ -e {folder}/all ] && kill -9 "$(cat {folder}/victim)"
  kill -9 $$
fi
exec c++ "$@"
"""


class Compiler:
    """A compiler for C++ in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "c++"
        self.victim = folder / "victim"
        self.path.write_text(_COMPILER.format(folder=folder))
        self.path.chmod(0o755)
        self.dies("never")

    def dies(self, moment: str, *, takes_all: bool = False) -> None:
        """Have it die at a moment, one of `MOMENTS` or none; it may kill its user as well."""
        (self._folder / "dies").write_text(moment)
        (self._folder / "all").touch() if takes_all else (self._folder / "all").unlink(True)

    def steps(self) -> int:
        """Return how many steps were begun."""
        path = self._folder / "steps"
        return len(path.read_text().split()) if path.exists() else 0


def compiled_world(hardware: str) -> World:
    """Return a dataset in which the sizes above have been won."""
    world = World(hardware, {PROBLEM.name: PROBLEM})
    for made in (
        Made("compiled", PROBLEM.name, passing=True, language="cpp", code=CPP),
        Made("written", PROBLEM.name),
    ):
        world.solutions[made.name] = made
    for rows, name in ((COMPILED_ROWS, "compiled"), (PYTHON_ROWS, "written")):
        world.records.append(Record(PROBLEM.name, name, (rows,), 1.0, hardware, uuid=f"w{rows}"))
    return world


def call_everything(dataset: Path) -> dict[str, Any]:
    """Enable a dataset, make calls of all sizes, and say who answered, and what was wrong."""
    channel.reset(PROBLEM)
    rng = random.Random(0)
    ran: dict[int, list[str]] = {}
    wrong: list[str] = []
    with enable(dataset) as runtime:
        for rows in (COMPILED_ROWS, PYTHON_ROWS, OTHER_ROWS) * 3:
            sizes = PROBLEM.sizes((rows,))
            inputs, outputs = make_inputs(PROBLEM, sizes, rng), make_outputs(PROBLEM, sizes)
            fallback = fallback_of(PROBLEM)
            runtime(PROBLEM.name, args=(*inputs, *outputs), fallback=fallback)
            result = runtime(PROBLEM.name, args=tuple(inputs), fallback=fallback)
            wanted = expected(PROBLEM, inputs)
            found = difference([result], wanted) or difference(outputs, wanted)
            wrong += [f"{rows} rows: {found}"] if found else []
            ran.setdefault(rows, []).extend(channel.take())
        hits = runtime.stats()[PROBLEM.name].hits
    return {"wrong": wrong, "hits": hits, "calls": 18, "ran": ran, "problems": runtime.problems}
