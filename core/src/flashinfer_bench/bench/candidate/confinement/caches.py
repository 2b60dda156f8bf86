"""Where libraries that a solution uses keep what they compile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

_FOLDERS = {
    "CUDA_CACHE_PATH": "cuda",
    "CUPY_CACHE_DIR": "cupy",
    "CUTE_DSL_CACHE_DIR": "cute_dsl",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "NUMBA_CACHE_DIR": "numba",
    "TILELANG_CACHE_DIR": "tilelang/cache",
    "TILELANG_TMP_DIR": "tilelang/tmp",
    "TORCHINDUCTOR_CACHE_DIR": "torch_inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TRITON_CACHE_DIR": "triton/cache",
    "TRITON_HOME": "triton",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "XDG_CACHE_HOME": "other",
}
# FlashInfer's kernels that are not compiled but downloaded: they are read where they have been.
_CUBINS, _CUBINS_PLACE = "FLASHINFER_CUBIN_DIR", Path(".cache", "flashinfer", "cubins")


def redirect_caches(folder: Path, environment: Optional[dict[str, str]] = None) -> None:
    """Have libraries keep what they compile in `folder`, and what they need meanwhile, too.

    Where they keep it otherwise other solutions would find it, and use it.

    Parameters
    ----------
    folder : Path
        An existing folder that is writable.
    environment : dict, optional
        The variables to change; by default those of this process.
    """
    variables = os.environ if environment is None else environment
    base = variables.get("FLASHINFER_WORKSPACE_BASE") or Path.home()
    cubins = Path(base, _CUBINS_PLACE)
    if cubins.is_dir():
        variables.setdefault(_CUBINS, str(cubins))
    for name, place in _FOLDERS.items():
        variables[name] = str(folder / place)
