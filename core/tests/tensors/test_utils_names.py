import subprocess
import sys

import pytest
import torch

from flashinfer_bench import utils
from flashinfer_bench.data import DType


def test_dtypes_by_their_names():
    assert utils.torch_dtype_from_def is utils.dtype_str_to_torch_dtype
    assert utils.dtype_str_to_torch_dtype("bfloat16") is torch.bfloat16
    assert utils.dtype_str_to_python_dtype("int32") is int


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (DType.INT64, True),
        (torch.uint8, True),
        ("bool", False),
        (torch.bfloat16, False),
    ],
)
def test_integers_are_told_by_name_and_by_torch_type(dtype, expected):
    assert utils.is_dtype_integer(dtype) is expected


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_everything_that_a_process_prints_goes_into_the_file(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    done = run(
        "import os, sys, subprocess\n"
        "from flashinfer_bench.utils import redirect_stdio_to_file\n"
        "print('shown')\n"
        f"redirect_stdio_to_file({str(log)!r})\n"
        "print('from print')\n"
        "print('from stderr', file=sys.stderr)\n"
        "os.write(1, b'from the descriptor\\n')\n"
        "subprocess.run([sys.executable, '-c', 'print(\"from a child\")'])\n"
    )
    assert done.stdout == "shown\n"
    assert done.stderr == ""
    assert log.read_text().splitlines() == [
        "before",
        "from print",
        "from stderr",
        "from the descriptor",
        "from a child",
    ]
