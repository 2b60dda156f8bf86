"""What differs where tensors live on a GPU."""

import pytest
import torch

from flashinfer_bench.bench.memory import memory_on
from flashinfer_bench.tensors import (
    allocate_outputs,
    env_snapshot,
    generate_inputs,
    list_cuda_devices,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def raw(tensor):
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).tolist()


def test_the_device_is_found_and_described():
    assert list_cuda_devices()[0] == "cuda:0"
    snapshot = env_snapshot("cuda:0")
    assert snapshot.hardware == torch.cuda.get_device_name(0)
    assert snapshot.libs["cuda"] == torch.version.cuda


def test_inputs_have_the_same_bits_as_on_the_cpu(make_definition, make_workload, dtype):
    definition = make_definition({"x": {"shape": ["n", "k"], "dtype": dtype}})
    workload = make_workload(definition, {"n": 100})
    (here,) = generate_inputs(definition, workload, seed=3, root=None)
    (there,) = generate_inputs(definition, workload, seed=3, root=None, device="cuda:0")
    assert there.device == torch.device("cuda:0")
    assert raw(there) == raw(here)


def test_outputs_are_poisoned_alike(make_definition, dtype):
    definition = make_definition(outputs={"out": {"shape": ["n", "k"], "dtype": dtype}})
    (here,) = allocate_outputs(definition, {"n": 5}, "cpu")
    (there,) = allocate_outputs(definition, {"n": 5}, "cuda:0")
    assert there.device == torch.device("cuda:0")
    if here.dtype.is_floating_point and dtype != "float4_e2m1":
        assert there.float().isnan().all()
    else:
        assert raw(there) == raw(here)


def test_shared_memory_is_not_unmapped_while_something_reads_it():
    for _ in range(5):
        held = memory_on("cuda:0", 1 << 28)
        held.tensor.fill_(1)
        wanted = held.tensor.numel()
        sums = [held.tensor.sum(dtype=torch.int64) for _ in range(50)]  # most are still to run
        held.close()
        assert {int(each) for each in sums} == {wanted}
