"""Names that this distribution adds to core's `flashinfer_bench.compile.toolkit`."""

from fib_native_toolkit.compiled import Artefact as Artefact
from fib_native_toolkit.compiled import BuildPlan as BuildPlan
from fib_native_toolkit.compiled import CompiledBuilder as CompiledBuilder
from fib_native_toolkit.compiled import LoadedLibrary as LoadedLibrary
from fib_native_toolkit.dependencies import Dependency as Dependency
from fib_native_toolkit.dependencies import find_dependencies as find_dependencies
from fib_native_toolkit.environment import cuda_architectures as cuda_architectures
from fib_native_toolkit.fingerprint import cuda_fingerprint as cuda_fingerprint
from fib_native_toolkit.fingerprint import host_fingerprint as host_fingerprint
from fib_native_toolkit.fingerprint import python_abi as python_abi
from fib_native_toolkit.inputs import read_dependencies as read_dependencies
from fib_native_toolkit.options import checked_options as checked_options
from fib_native_toolkit.options import guess_binding as guess_binding
from fib_native_toolkit.run import COMPILER_LOG as COMPILER_LOG
from fib_native_toolkit.run import ToolOutput as ToolOutput
from fib_native_toolkit.run import check_output as check_output
from fib_native_toolkit.run import run_tool as run_tool
from fib_native_toolkit.run import unsupported_by_toolkit as unsupported_by_toolkit
from fib_native_toolkit.tools import Tool as Tool
from fib_native_toolkit.tools import cuda_home as cuda_home
from fib_native_toolkit.tools import find_cc as find_cc
from fib_native_toolkit.tools import find_cxx as find_cxx
from fib_native_toolkit.tools import find_ninja as find_ninja
from fib_native_toolkit.tools import find_nvcc as find_nvcc
