"""A small real builder: one C function on floats, compiled by the system and called by ctypes."""

import ctypes

from fib_native_toolkit import (
    COMPILER_LOG,
    BuildPlan,
    CompiledBuilder,
    LoadedLibrary,
    check_output,
    checked_options,
    find_cc,
    host_fingerprint,
    run_tool,
)
from flashinfer_bench.data import Definition, Solution
from flashinfer_bench.errors import BuildError

FLAGS = ("-O1", "-fPIC", "-shared", "-MD")


class CBuilder(CompiledBuilder):
    """Compiles the entry file; its entry point takes a double and returns one."""

    build_type = "c"

    def __init__(self, **key):
        super().__init__(package_prefix="fib_c", build_dir_name="c")
        self.more_key = key

    def can_build(self, solution):
        return solution.spec.language == "c"

    def plan(self, definition, solution):
        options = checked_options(solution)
        cc = find_cc()
        flags = [*FLAGS, *options.cflags, *options.ldflags]
        return BuildPlan({**host_fingerprint(cc, flags), **self.more_key}, settings=cc)

    def compile_into(self, definition, solution, plan, folder):
        options = checked_options(solution, folder)
        command = [
            *plan.settings.command,
            *FLAGS,
            *options.cflags,
            *(f"-I{path}" for path in options.include_paths),
            f"sources/{solution.get_entry_path()}",
            *("-o", "kernel.so"),
            *options.ldflags,
        ]
        result = run_tool(command, cwd=folder, log=folder / COMPILER_LOG)
        check_output(solution.name, "compiling", result)
        return "kernel.so"

    def load(self, definition, solution, artefact):
        try:
            function = ctypes.CDLL(str(artefact.library))[solution.get_entry_symbol()]
        except (OSError, AttributeError) as error:
            raise BuildError(f"solution {solution.name!r} cannot be loaded: {error}") from error
        function.argtypes, function.restype = (ctypes.c_double,), ctypes.c_double
        return LoadedLibrary(function, destination_passing_style=False, misc={"loaded": True})


def definition(name="scale"):
    return Definition(
        name=name,
        op_type="op",
        axes={"n": {"type": "const", "value": 1}},
        inputs={"x": {"shape": None, "dtype": "float32"}},
        outputs={"y": {"shape": ["n"], "dtype": "float32"}},
        reference="def run(x):\n    return x\n",
    )


def solution(text="double run(double x) { return 2 * x; }\n", name="twice", files=None, **spec):
    files = {"kernel.c": text, **(files or {})}
    return Solution(
        name=name,
        definition="scale",
        author="author",
        spec={"language": "c", "target_hardware": ["cpu"], "entry_point": "kernel.c::run", **spec},
        sources=[{"path": path, "content": content} for path, content in files.items()],
    )
