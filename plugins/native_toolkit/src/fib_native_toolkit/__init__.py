"""Toolkit for builders of compiled languages; includes core's toolkit for convenience.

=================  ============================================================================
`tools`            find compilers, CUDA's toolkit and ninja
`run`              run them and capture their output
`inputs`           files outside its folder that a build has read
`fingerprint`      what a result depends on besides its sources
`options`          validate a solution's flags; guess its binding
`dependencies`     cuBLAS, cuDNN and CUTLASS
`recipe`, `cuda`   create and run the commands that make a library
`compiled`         `CompiledBuilder`, a base class that combines these
=================  ============================================================================
"""

from fib_native_toolkit.names import *  # noqa: F403
from flashinfer_bench.compile.toolkit import *  # noqa: F403
