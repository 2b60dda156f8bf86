"""A cluster of real Ray processes on this machine, with pretended GPUs, and a dataset for it."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "scaled_add_h8"
SOURCE = "def run(x, y, scale):\n    return x * scale + y\n"
NONE: Mapping[str, str] = MappingProxyType({})
QUICK = ("--warmup-runs", "1", "--iterations", "3", "--num-trials", "1")


class SmallCluster:
    """A head without devices and nodes with one pretended GPU each; also usable by tests.

    Parameters
    ----------
    folder : Path
        For the caches and locks of the nodes.
    nodes : int
        How many nodes there are besides the head, which stays when they are killed.

    Attributes
    ----------
    address : str
        Where it is.
    nodes : dict
        The nodes besides the head, by name.
    """

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "node_name": "head",
                "include_dashboard": False,
                "object_store_memory": 100 << 20,
            },
        )
        self.nodes: dict[str, Any] = {}
        self._variables: dict[str, Mapping[str, str]] = {}
        for number in range(nodes):
            self.add(f"node-{number}", wait=False)
        self.wait()
        self.address: str = self._cluster.address

    def wait(self) -> None:
        """Wait until all nodes are there."""
        self._cluster.wait_for_nodes()

    def add(self, name: str, *, wait: bool = True, variables: Mapping[str, str] = NONE) -> None:
        """Start a node, with more variables in its environment."""
        self._variables[name] = variables
        # Caches are a node's own. Locks are not: the cores are one device, however many share it.
        given = {
            "num_cpus": 2,
            "num_gpus": 1,
            "object_store_memory": 100 << 20,
            "env_vars": {
                "FIB_CACHE_PATH": str(self.folder / name / "cache"),
                "FIB_LOCK_PATH": str(self.folder / "locks"),
                **variables,
            },
        }
        self.nodes[name] = self._cluster.add_node(node_name=name, wait=wait, **given)

    def kill(self, name: str) -> None:
        """Kill all processes of a node."""
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def restart(self, name: str) -> None:
        """Kill a node, and start one like it."""
        self.kill(name)
        self.add(name, wait=False, variables=self._variables[name])

    def close(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


@contextmanager
def small_cluster(nodes: int = 3) -> Iterator[SmallCluster]:
    """Lend a cluster."""
    with tempfile.TemporaryDirectory(prefix="fib-fleet-") as folder:
        made = SmallCluster(Path(folder), nodes)
        try:
            yield made
        finally:
            made.close()


def make_dataset(root: Path, *, workloads: int, solutions: int, definitions: int = 1) -> int:
    """Write a dataset of small computations, and return the number of evaluations."""
    for index in range(definitions):
        name = f"{NAME}_{index}"
        shape = ["tokens", "hidden"]
        tensor = {"shape": shape, "dtype": "float32"}
        definition = {
            "name": name,
            "op_type": "op",
            "axes": {"tokens": {"type": "var"}, "hidden": {"type": "const", "value": 8}},
            "inputs": {"x": tensor, "y": tensor, "scale": {"shape": None, "dtype": "float32"}},
            "outputs": {"z": tensor},
            "reference": SOURCE,
        }
        _write(root / "definitions" / "op" / f"{name}.json", json.dumps(definition))
        random = {"type": "random"}
        lines = [
            {
                "definition": name,
                "workload": {
                    "uuid": f"{name}-w{number}",
                    "axes": {"tokens": number + 1},
                    "inputs": {"x": random, "y": random, "scale": {"type": "scalar", "value": 0.5}},
                },
            }
            for number in range(workloads)
        ]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        _write(root / "workloads" / "op" / f"{name}.jsonl", text)
        for number in range(solutions):
            solution = {
                "name": f"{name}_s{number}",
                "definition": name,
                "author": "ann",
                "spec": {
                    "language": "python",
                    "target_hardware": ["cpu"],
                    "entry_point": "main.py::run",
                    "destination_passing_style": False,
                },
                "sources": [{"path": "main.py", "content": f"{SOURCE}# {number}\n"}],
            }
            folder = root / "solutions" / "ann" / "op" / name
            _write(folder / f"{solution['name']}.json", json.dumps(solution))
    return definitions * workloads * solutions


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def command(dataset: Path, *more: str, address: str = "") -> list[str]:
    """Return the command of a run on the CPU; with an address, on a cluster."""
    fleet = ("--executor", "ray", "--ray-address", address, "--ray-resource", "GPU")
    return [
        *(sys.executable, "-m", "flashinfer_bench", "run", "--local", str(dataset)),
        *("--device", "cpu", *QUICK, *(fleet if address else ()), *more),
    ]


def keys_of(dataset: Path) -> list[tuple[str, str, str]]:
    """Return definition, solution and workload of each trace."""
    found = []
    for path in sorted(dataset.glob("traces/**/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            trace = json.loads(line)
            found.append((trace["definition"], trace["solution"], trace["workload"]["uuid"]))
    return found
