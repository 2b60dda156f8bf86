"""Which errors of a call are the compiler's, and what is said about them."""

import json

import pytest

from flashinfer_bench.errors import BuildError

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"

# Triton compiles for a GPU that is not there; only launching needs one.
COMPILE = """
def run(x, y, scale):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(kernel, {"x": "*fp32", "n": "i32"}, constexprs=CONSTANTS)
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options=OPTIONS)
"""
RUN = "import sys, json\nfrom fib_builder_triton.builder import TritonBuilder\n" + (
    "from flashinfer_bench.data import Definition, Solution\n"
    "definition = Definition.model_validate_json(sys.argv[1])\n"
    "for text in json.loads(sys.argv[2]):\n"
    "    try:\n"
    "        runnable = TritonBuilder().build(definition, Solution.model_validate(text))\n"
    "        stage = 'call'\n"
    "        runnable(1, 2, 3)\n"
    "        outcome = ['nothing', '', '', '']\n"
    "    except Exception as error:\n"
    "        kind, cause = type(error).__name__, type(error.__cause__).__name__\n"
    "        outcome = [kind, str(error), getattr(error, 'log', ''), cause]\n"
    "    print(json.dumps(outcome))\n"
)


def compiling(kernel, *, constants="{}", options="{}", head=HEAD):
    return f"{head}CONSTANTS, OPTIONS = {constants}, {options}\n@triton.jit\n{kernel}{COMPILE}"


def raising(statement):
    return f"{HEAD}import triton.runtime.errors as errors\ndef run(x, y, scale):\n{statement}\n"


SOURCES = {
    "name": compiling("def kernel(x, n):\n    tl.store(x, nosuch)\n"),
    "shape": compiling("def kernel(x, n):\n    tl.store(x, tl.arange(0, 8) + tl.arange(0, 16))\n"),
    "assert": compiling(
        "def kernel(x, n, B: tl.constexpr):\n    tl.static_assert(B == 3, 'must be 3')\n",
        constants="{'B': 4}",
    ),
    "library": compiling("def kernel(x, n):\n    tl.store(x, tl.sum(n, axis=0))\n"),
    "ptxas": compiling(
        "def kernel(x, n):\n"
        "    bad = tl.inline_asm_elementwise('bogus $0, $1;', '=r,r', [n], tl.int32, True, 1)\n"
        "    tl.store(x, bad)\n"
    ),
    "options": compiling("def kernel(x, n):\n    tl.store(x, n)\n", options="{'num_warps': 3}"),
    "no C compiler": raising(
        "    import os, triton.runtime.build as build\n"
        "    os.environ['CC'] = '/no/such/compiler'\n"
        "    build.compile_module_from_src('int x;', 'launcher')"
    ),
    "bad C compiler": raising(
        "    import os, triton.runtime.build as build\n"
        "    os.environ['CC'] = 'false'\n"
        "    build.compile_module_from_src('int y;', 'launcher')"
    ),
    "run time": raising("    raise ValueError('x must be on the GPU')"),
    "after a fallback": compiling("def kernel(x, n):\n    tl.store(x, nosuch)\n").replace(
        "def run(x, y, scale):",
        "def run(x, y, scale):\n    try:\n        inner(x, y, scale)\n"
        "    except Exception:\n        raise ValueError('the other way fails, too') from None\n"
        "def inner(x, y, scale):",
    ),
    "no GPU": compiling("def kernel(x, n):\n    tl.store(x, n)\n")
    + "def run(x, y, scale):\n    kernel[(1,)](torch.zeros(8), 3)\n",
    "disk": compiling("def kernel(x, n):\n    tl.store(x, n + 1)\n").replace(
        "    triton.compile(", "    triton.knobs.cache.dir = '/proc/none'\n    triton.compile("
    ),
    "full": compiling("def kernel(x, n):\n    tl.store(x, n + 2)\n").replace(
        "    triton.compile(",
        "    import os\n    real = os.replace\n"
        "    def replace(*_):\n        os.replace = real\n"
        "        raise OSError(28, 'No space left on device')\n"
        "    os.replace = replace\n"
        "    triton.compile(",
    ),
    "its own disk": raising("    raise OSError(28, 'No space left on device')"),
}


@pytest.fixture(scope="module")
def outcomes(in_child, tmp_path_factory):
    """What became of each of `SOURCES`, built and called in one process that compiles."""
    folder = tmp_path_factory.mktemp("caches")
    matrix = {"shape": ["n"], "dtype": "float32"}
    definition = {
        "name": "d",
        "op_type": "op",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": matrix, "y": matrix, "scale": matrix},
        "outputs": {"out": matrix},
        "reference": "def run(x, y, scale):\n    return x\n",
    }
    solutions = [
        {
            "name": "s",
            "definition": "d",
            "author": "tester",
            "spec": {
                "language": "triton",
                "target_hardware": ["cuda"],
                "entry_point": "main.py::run",
            },
            "sources": [{"path": "main.py", "content": source}],
        }
        for source in SOURCES.values()
    ]
    done = in_child(
        RUN,
        json.dumps(definition),
        json.dumps(solutions),
        FIB_CACHE_PATH=str(folder),
        TRITON_CACHE_DIR=str(folder / "of_triton"),
        TMPDIR=str(folder),  # ptxas leaves files behind where it fails
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return dict(zip(SOURCES, map(json.loads, lines), strict=True))


@pytest.mark.parametrize(
    ("case", "line", "reason"),
    [
        ("name", 7, "NameError('nosuch is not defined')"),
        ("shape", 7, "incompatible dimensions at index 0: 8 and 16"),
        ("assert", 7, "must be 3"),
        ("library", 7, ""),
    ],
)
def test_what_it_refuses_is_told_with_its_place(outcomes, case, line, reason):
    kind, message, log, cause = outcomes[case]
    assert kind == "BuildError"
    assert message.startswith(f"solution 's': compiling the kernel failed: main.py:{line}: ")
    assert reason in message
    assert "\n" not in message
    assert cause in ("CompilationError", "CompileTimeAssertionFailure")
    assert f"at {line - 5}:" in log
    assert any(text.strip() == "^" for text in log.splitlines())


LAUNCHER = ("Triton's launcher failed", "hint: Triton compiles its launchers with a C compiler")
STORAGE = ("solution 's': Triton cannot store what it compiles: ", "TRITON_CACHE_DIR")


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("ptxas", "BuildError", ["solution 's': ptxas failed: "]),
        ("options", "BuildError", ["compiling the kernel failed: AssertionError: num_warps must"]),
        # Not the kernel's fault.
        ("no C compiler", "BuildCapabilityError", LAUNCHER),
        ("bad C compiler", "BuildCapabilityError", LAUNCHER),
        ("disk", "CacheError", STORAGE),
        ("full", "CacheError", STORAGE),
        # These come through as they are.
        ("run time", "ValueError", []),
        ("after a fallback", "ValueError", []),
        ("no GPU", "RuntimeError", []),
        ("its own disk", "OSError", []),
    ],
)
def test_other_errors(outcomes, case, kind, words):
    found, message, _, cause = outcomes[case]
    assert found == kind
    assert all(word in message for word in words), message
    assert (cause != "NoneType") is bool(words)


KERNELS = {
    "name": ("    tl.store(x, nosuch)\n", "main.py:6: NameError"),
    "shape": (
        "    tl.store(x, tl.arange(0, 8) + tl.arange(0, 16))\n",
        "main.py:6: ValueError: Cannot make_shape_compatible",
    ),
    "assert": ("    tl.static_assert(False, 'must be 3')\n", "main.py:6: AssertionError: must be"),
    "nested": ("    tl.store(x, half(n))\n", "main.py:15: AttributeError"),
}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("case", KERNELS)
def test_what_a_compiler_would_refuse_in_the_interpreter(build, make_solution, inputs, case):
    body, reason = KERNELS[case]
    solution = make_solution(
        f"{HEAD}@triton.jit\ndef kernel(x, n):\n{body}"
        "def run(x, y, scale):\n    kernel[(1,)](x, 3)\n    return x\n\n\n"
        "@triton.jit\ndef half(n):\n    n = n\n    return n.nosuch // 2\n"
    )
    with pytest.raises(BuildError) as caught:
        build(solution)(*inputs)
    assert f"solution 'my_solution': compiling the kernel failed: {reason}" in str(caught.value)
    assert type(caught.value.__cause__).__name__ == "InterpreterError"
    assert "Traceback" in caught.value.log
