"""Norms on the CPU: the kernels behind ``flashinfer.norm``, by their definitions."""

import torch


def normalised(x, weight, eps, bias=0.0):
    """Return x / RMS(x) * (weight + bias), worked out in float32, in the dtype of x."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * (weight.float() + bias)).to(x.dtype)


def rmsnorm(out, input, weight, eps, enable_pdl):
    """Write the norm of `input` into `out`."""
    out.copy_(normalised(input, weight, eps))


def gemma_rmsnorm(out, input, weight, eps, enable_pdl):
    """Write the norm of `input`, with weights that are off by one, into `out`."""
    out.copy_(normalised(input, weight, eps, bias=1.0))


def fused_add_rmsnorm(input, residual, weight, eps, enable_pdl, bias=0.0):
    """Add `input` to `residual`, and write the norm of the float32 sum into `input`."""
    total = input.float() + residual.float()
    residual.copy_(total)
    scale = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + eps)
    input.copy_(total * scale * (weight.float() + bias))


def gemma_fused_add_rmsnorm(input, residual, weight, eps, enable_pdl):
    """Do as `fused_add_rmsnorm`, with weights that are off by one."""
    fused_add_rmsnorm(input, residual, weight, eps, enable_pdl, bias=1.0)


def install(patch):
    """Put these in the place of the compiled module of norms."""
    norm = patch.module("flashinfer.norm")
    kernels = patch.namespace(
        "norm",
        rmsnorm=rmsnorm,
        gemma_rmsnorm=gemma_rmsnorm,
        fused_add_rmsnorm=fused_add_rmsnorm,
        gemma_fused_add_rmsnorm=gemma_fused_add_rmsnorm,
    )
    # Releases up to 0.6.9 have no getter where the other implementation of norms is installed.
    patch.set(norm, "get_norm_module", lambda: kernels, new=True)
    patch.set_if_there(norm, "_USE_CUDA_NORM", True)
    patch.set_if_there(norm, "_use_cuda_norm", lambda device: True)
