"""A toolkit for builders of compiled languages; with core's part of it, so that one import serves.

=================  ============================================================================
`tools`            find compilers, CUDA's toolkit and ninja
`run`              run them and keep what they print
`inputs`           what a build has read outside of its folder
`fingerprint`      what a compiled result depends on besides its sources
`options`          a solution's own flags, checked; its binding, guessed
`dependencies`     cuBLAS, cuDNN and CUTLASS
`recipe`, `cuda`   the commands that make a library, and running them
`compiled`         all of that in one base class: `CompiledBuilder`
=================  ============================================================================
"""

from fib_native_toolkit.names import *  # noqa: F403
from flashinfer_bench.compile.toolkit import *  # noqa: F403
