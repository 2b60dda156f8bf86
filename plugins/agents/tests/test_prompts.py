"""Prompts: every sample is built by the builder that it is meant for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import fib_agents
from fib_agents import kernel_prompts
from fib_agents.kernel_prompts import LANGUAGES, prompt_for
from fib_tests import forked
from fib_tests.scaled_add import DEFINITION
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import UnknownNameError

PROMPTS = Path(kernel_prompts.__file__).parent / "prompts"

# Folder in a sample's first line: language, binding, entry file, device, and variables for here.
_CUDA = {"FIB_CUDA_ARCH_LIST": "9.0a"}
SAMPLES = {
    "cuda-tvm-ffi": ("cuda", "tvm-ffi", "main.cu", "cuda", _CUDA),
    "cuda-torch": ("cuda", "torch", "main.cpp", "cuda", _CUDA),
    "triton": ("triton", None, "main.py", "cpu", {"TRITON_INTERPRET": "1"}),
    "cute-style": ("cuda", "tvm-ffi", "main.cu", "cuda", _CUDA),
    "tilelang": ("tilelang", None, "main.py", "cpu", {}),
    "python": ("python", None, "main.py", "cpu", {}),
    "ffi": ("cuda", "tvm-ffi", "main.cu", "cuda", _CUDA),
    "ffi-returning": ("cuda", "tvm-ffi", "main.cu", "cuda", _CUDA),
    "ffi-simple": ("cuda", "tvm-ffi", "main.cu", "cuda", _CUDA),
}
# What a process of its own does, because some of the variables are read once.
BUILD = """
import json, sys
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import default_catalog
from fib_testing import make_solution, sample_definition

request = json.load(sys.stdin)
definition = sample_definition()
solution = make_solution(definition, request["sources"], request["entry"], **request["spec"])
spec, device = solution.spec, request["device"]
try:
    default_catalog().select_builder(spec.language, spec.binding, solution="it", device=device)
except CapabilityError as error:
    sys.exit(f"cannot be used here: {error}")
registry = BuilderRegistry.from_catalog(device=device)
import torch
if device == "cuda" and not torch.cuda.is_available():
    try:
        registry.compile(definition, solution)
    except CapabilityError as error:
        sys.exit(f"cannot be used here: {error}")
    print("compiled")
else:
    run = registry.build(definition, solution)
    if request["executes"]:
        for tokens in (5, 0, 200):
            x, y = torch.randn(2, tokens, 8, device=device)
            torch.testing.assert_close(run.call_value_returning(x, y, 0.5), (x + y) * 0.5)
    print("computed")
"""


def samples() -> dict[str, dict[str, str]]:
    """Return the files of each sample in all prompts."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for file in sorted(PROMPTS.glob("*.md")):
        text = file.read_text(encoding="utf-8")
        for fence in re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            folder, _, name = re.match(r"(?:#|//) (\S+)\n", fence)[1].partition("/")
            found[folder][name] = fence
    return found


@pytest.fixture
def definition() -> Definition:
    """The scaled addition."""
    return Definition.model_validate(DEFINITION)


def test_every_sample_is_tried() -> None:
    assert set(samples()) == set(SAMPLES)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("folder", SAMPLES)
def test_samples_build(folder: str, tmp_path: Path) -> None:
    language, binding, entry, device, variables = SAMPLES[folder]
    spec: dict[str, object] = {"language": language, "binding": binding}
    # Elsewhere than on a GPU, TileLang compiles kernels of CUDA when they are called.
    executes = folder != "tilelang"
    if folder == "cute-style":
        spec["dependencies"] = ["cutlass"]  # where it is missing, the builder says so
    request = {"sources": samples()[folder], "entry": f"{entry}::run", "spec": spec}
    request |= {"device": device, "executes": executes}
    private = {"FIB_CACHE_PATH": str(tmp_path / "cache"), "TRITON_CACHE_DIR": str(tmp_path / "t")}
    environment = {**os.environ, **private, "TILELANG_CACHE_DIR": str(tmp_path / "l"), **variables}
    done = forked.run([sys.executable, "-c", BUILD], input=json.dumps(request), env=environment)
    if "cannot be used here: " in done.stderr:
        pytest.skip(done.stderr.partition("cannot be used here: ")[2].strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] in ("computed", "compiled")


@pytest.mark.slow
def test_the_kernel_of_the_torch_extension_compiles(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no CUDA toolkit")
    source = tmp_path / "kernel.cu"
    source.write_text(samples()["cuda-torch"]["kernel.cu"], encoding="utf-8")
    subprocess.run([nvcc, "-arch=sm_90a", "-c", source, "-o", tmp_path / "kernel.o"], check=True)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_kernel_in_tilelang_compiles_for_a_gpu(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no CUDA toolkit")
    (tmp_path / "sample.py").write_text(samples()["tilelang"]["main.py"], encoding="utf-8")
    code = (
        "import tilelang, importlib.util\n"
        "real = tilelang.jit\n"
        "target = {'kind': 'cuda', 'arch': 'sm_90a'}\n"
        "tilelang.jit = lambda **given: real(target=target, **given)\n"
        "import sample\n"
        "print('__global__' in sample.scaled_add.compile(1000).get_kernel_source())\n"
    )
    environment = {**os.environ, "TILELANG_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = forked.run([sys.executable, "-c", code], env=environment)
    if "No module named 'tilelang'" in done.stderr:
        pytest.skip("TileLang is not installed")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_prompt_has_what_is_needed(definition: Definition, language: str) -> None:
    text = prompt_for(definition, language)
    assert f"# Definition {definition.name}" in text
    assert definition.reference.strip() in text
    for told in (
        "input `x`: float32[tokens, hidden]",
        "input `scale`: scalar of float32",
        "axis `hidden`: constant: 8",
        "axis `tokens`: set by each workload",
        "run(x, y, scale, out)",
        "INCORRECT_NUMERICAL",
        "destination_passing_style",
        '"entry_point"',
        "Mistakes that are often made",
    ):
        assert told in text
    assert len(text) < 16_000


def test_an_unknown_language(definition: Definition) -> None:
    with pytest.raises(UnknownNameError, match="no prompt is called 'rust'"):
        prompt_for(definition, "rust")


def test_specs_in_the_prompts_are_valid() -> None:
    from flashinfer_bench.data import BuildSpec

    found = 0
    for file in PROMPTS.glob("*.md"):
        for spec in re.findall(r"`spec`:\s+`(\{.*?\})`", file.read_text(), re.DOTALL):
            BuildSpec.model_validate(json.loads(spec))
            found += 1
    assert found == 6


def test_prompts_for_tvm_ffi() -> None:
    assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC" in fib_agents.FFI_PROMPT
    assert len(fib_agents.FFI_PROMPT_SIMPLE) < len(fib_agents.FFI_PROMPT)
