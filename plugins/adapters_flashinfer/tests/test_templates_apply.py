"""Generated adapters at work: the real FlashInfer, patched by enabling, in a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fib_adapters_flashinfer.templates import read_apis

HERE = Path(__file__).parent


pytestmark = pytest.mark.plugin("flashinfer")


@pytest.fixture
def program(flashinfer, tmp_path):
    """Runs a program with the FlashInfer of these tests; returns what it prints as JSON."""
    if not read_apis():
        pytest.skip(f"flashinfer {flashinfer.__version__} has no trace templates")

    def run(body, **variables):
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(body), encoding="utf-8")
        release = os.environ.get("FIB_TEST_FLASHINFER")
        paths = [*([release] if release else []), str(HERE), os.environ.get("PYTHONPATH", "")]
        known = {key: value for key, value in os.environ.items() if not key.startswith("FIB_")}
        known |= {"PYTHONPATH": os.pathsep.join(paths), "FIB_CACHE_PATH": str(tmp_path)}
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", str(file)],
            env={**known, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return json.loads(ran.stdout.splitlines()[-1])

    return run


def test_a_generated_adapter_from_enabling_to_disabling(program):
    found = program(
        """
        import json
        import sys
        import types
        import torch
        import flashinfer
        from flashinfer.activation import silu_and_mul as by_value
        from flashinfer_bench.apply import disable_apply, enable_apply
        from flashinfer_bench.routing import installation

        engine = types.ModuleType("engine")
        engine.silu_and_mul = flashinfer.silu_and_mul
        sys.modules["engine"] = engine
        before = {
            f"{name}.{attribute}": value
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in ("flashinfer", "engine") and module is not None
            for attribute, value in vars(module).items()
        }

        def silu(input):
            gate, up = input.float().chunk(2, dim=-1)
            return (torch.nn.functional.silu(gate) * up).to(input.dtype)

        def merged(v_a, s_a, v_b, s_b):
            return v_a + v_b, s_a + s_b

        x = torch.randn(4, 64).bfloat16()
        v, s = torch.ones(3, 2, 8), torch.ones(3, 2)
        enable_apply({"silu_and_mul_h64": silu, "merge_state_h2_d8": merged})
        ours = [flashinfer.silu_and_mul, flashinfer.activation.silu_and_mul, engine.silu_and_mul]
        results = [each(x) for each in ours]
        out = torch.empty(4, 32).bfloat16()
        into = flashinfer.silu_and_mul(x, out=out)
        pair = flashinfer.merge_state(v, s, v, s)
        refused = ""
        try:
            flashinfer.silu_and_mul(torch.randn(4, 32).bfloat16())  # the kernel itself: no GPU here
        except Exception as error:
            refused = type(error).__name__
        statuses = installation.default().statuses()
        disable_apply()
        after = {
            f"{name}.{attribute}": vars(sys.modules[name]).get(attribute)
            for name, attribute in (key.rsplit(".", 1) for key in before)
        }
        print(json.dumps({
            "one": len({id(each) for each in ours}) == 1 and ours[0] is not by_value,
            "equal": all(torch.equal(each, silu(x)) for each in results),
            "out": into is out and torch.equal(out, results[0]),
            "pair": [each.flatten()[0].item() for each in pair],
            "refused": refused,
            "patched": sorted(
                each.path for each in statuses
                if each.state == "patched" and each.adapter == "flashinfer.templates"
            ),
            "failed": [each.path for each in statuses if each.state == "failed"],
            "changed": [key for key in before if after[key] is not before[key]],
        }))
        """
    )
    assert all(found[each] for each in ("one", "equal", "out"))
    assert found["pair"] == [2.0, 2.0]
    assert found["refused"]
    assert found["patched"] == [
        "flashinfer.activation.silu_and_mul",
        "flashinfer.cascade.merge_state",
    ]
    assert found["failed"] == []
    assert found["changed"] == []
