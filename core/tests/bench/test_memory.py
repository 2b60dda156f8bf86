"""Memory of the judge's, as another process maps it."""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench import memory
from flashinfer_bench.bench.memory import ALIGNMENT, Memory, memory_on, size_of, tensor_at
from flashinfer_bench.data import DType
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors import to_torch_dtype

dtypes = st.sampled_from([dtype.value for dtype in DType])
shapes = st.lists(st.integers(0, 9), max_size=3)

# It knows nothing of this package: what it shares with this process is the memory alone.
OTHER = """
import mmap, sys
words = memoryview(mmap.mmap(int(sys.argv[1]), int(sys.argv[2])))
print(bytes(words[4992:5000]).hex())
words[:8], words[4992:5000] = bytes([7]) * 8, bytes([9]) * 8
"""


def exists(descriptor):
    return Path(f"/proc/self/fd/{descriptor}").exists()


@contextmanager
def limited(kind, most):
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


class TestTensors:
    @given(st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=6))
    def test_one_after_another_are_aligned_and_apart(self, kinds):
        sizes = [size_of(*kind) for kind in kinds]
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        room = Memory(sum(sizes)).tensor
        tensors = [tensor_at(room, at, *kind) for at, kind in zip(starts, kinds, strict=True)]
        for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, kinds, strict=True), 1):
            assert (list(tensor.shape), tensor.dtype) == (shape, to_torch_dtype(dtype))
            assert tensor.is_contiguous()
            assert not tensor.numel() or tensor.data_ptr() % ALIGNMENT == 0
            tensor.view(-1).view(torch.uint8).fill_(number)
        for number, tensor in enumerate(tensors, 1):
            assert tensor.view(-1).view(torch.uint8).eq(number).all()
            assert tensor.nbytes <= sizes[number - 1] < tensor.nbytes + ALIGNMENT

    @given(shapes, dtypes, st.integers(0, 40), st.integers(0, 9999))
    def test_none_reaches_beyond_the_end(self, shape, dtype, start, size):
        room = torch.zeros(size, dtype=torch.uint8)
        start *= ALIGNMENT
        if start + prod(shape) * to_torch_dtype(dtype).itemsize <= size:
            assert list(tensor_at(room, start, shape, dtype).shape) == shape
        else:
            with pytest.raises(ValueError, match=f"in a memory of {size}"):
                tensor_at(room, start, shape, dtype)


class TestMemory:
    @pytest.mark.parametrize("nbytes", [0, 1, 4096, 3_000_001])
    def test_is_as_large_as_asked_for_and_empty(self, nbytes):
        made = memory_on("cpu", nbytes)
        assert nbytes <= made.tensor.numel() <= max(nbytes, 2**16)
        assert not made.tensor.any()

    def test_another_process_sees_what_is_written_and_the_other_way_round(self):
        made, number = Memory(5000), 0x0102030405060708
        made.tensor[4992:5000].view(torch.int64).fill_(number)
        command = [sys.executable, "-c", OTHER, str(made.descriptor), "5000"]
        found = subprocess.run(
            command, pass_fds=[made.descriptor], capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == number.to_bytes(8, sys.byteorder).hex()
        assert made.tensor[4992:5000].tolist() == [9] * 8
        assert made.words[0] == 0x0707070707070707

    def test_words_of_a_page(self):
        page = memory.page()
        mapped = Memory(0, os.dup(page.descriptor))
        assert memory.ADDRESSES + memory.MOST_OUTPUTS <= len(page.words) == 512
        for place, number in enumerate((2**64 - 1, 1, 2**63)):
            page.words[place] = number
            assert mapped.words[place] == number
        with pytest.raises(ValueError):  # noqa: PT011 - whatever Python says
            page.words[0] = 2**64

    def test_closing(self):
        """What is mapped stays as long as anything lies there."""
        made = Memory(100)
        tensor, words, mapped = made.tensor, made.words, Memory(100, os.dup(made.descriptor))
        held = [made.descriptor, mapped.descriptor]
        assert not any(map(os.get_inheritable, held))
        mapped.close()
        mapped.close()
        assert list(map(exists, held)) == [True, False]
        del made
        assert not exists(held[0])
        mapped.tensor[0] = 5
        assert (tensor[0], words[0]) == (5, 5)

    @pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory can be sealed here")
    def test_whoever_has_its_descriptor_cannot_change_its_size(self):
        made = Memory(100_000)
        for size in (0, 4096, 200_000):
            with pytest.raises(PermissionError):
                os.ftruncate(made.descriptor, size)

    def test_of_another_process_that_is_shorter_than_told(self):
        made = Memory(1)
        descriptor = os.dup(made.descriptor)
        with pytest.raises(ValueError, match="mmap"):
            Memory(2**20, descriptor)
        assert not exists(descriptor)


@pytest.mark.parametrize("limit", ["file", "address space", "descriptors"])
def test_a_refusal_says_how_much_was_asked_for(limit):
    """By limits of this process, as by a system that has no more."""
    held = len(list(Path("/proc/self/fd").iterdir()))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    kind, most = {
        "file": (resource.RLIMIT_FSIZE, 2**20),
        "address space": (resource.RLIMIT_AS, pages * resource.getpagesize() + 2**20),
        "descriptors": (resource.RLIMIT_NOFILE, 3),
    }[limit]
    with limited(kind, most), pytest.raises(CapabilityError) as caught:
        Memory(32 * 2**20)
    assert "32.0 MiB of shared memory" in caught.value.message
    del caught
    assert len(list(Path("/proc/self/fd").iterdir())) == held
