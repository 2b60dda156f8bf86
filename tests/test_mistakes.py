"""Mistakes that users make: each has its exit code, says what is wrong, and loses nothing."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tarfile

import pytest

from fib_tests.dataset_maker import DatasetMaker
from fib_tests.starts import Starter

LONG = "x" * 300
DEF = "d/definitions/op/double.json"
SOL = "d/solutions/alice/op/double/alice_double.json"
WORK = "d/workloads/op/double.jsonl"
RUNS = "d/traces/op/double.jsonl"
QUICK = "--device cpu --iterations 2 --num-trials 1 --warmup-runs 0"
NO_DATASET = "no dataset: nope does not exist | name a dataset folder, as an argument or with"
NO_FOLDER = "no folder nope | create it first"
TOO_LONG = "File name too long | name another path"
READ_ONLY = "cannot write: Permission denied | change the permissions"
NO_ROOM = "cannot write: File too large | free some space"
ELSEWHERE = "needs Linux or macOS | use WSL 2"
NO_TIMER = "No timer 'nope'. Available timers: cpu, | fib plugins list --kind timer"
NO_DEVICE = "no device 'gpu'; allowed: cpu, cuda or cuda:N | did you mean cuda?"
BLOB = '"type": "safetensors", "tensor_key": "x", "path": '

# Exit code, command line, what is said of it (all parts), and what is in disorder: a text in a file
# that is another (none: the whole file), or the name of something below. The working directory has
# a dataset d, its archive d.tar.gz, a text named file and a folder named empty.
COMMANDS = [
    (2, "", "Usage: fib [OPTIONS] COMMAND"),
    (2, "rport", "no command 'rport'. Did you mean 'report' | try 'fib --help'"),
    (2, "report", "Usage: fib report"),
    (2, "report bst", "No such command 'bst'. Did you mean 'best'? | try 'fib report --help'"),
    (2, "--nope", "No such option: --nope | try 'fib --help'"),
    (2, "report best d --lcal x", "No such option: --lcal | --local"),
    (2, "report best d --format xml", "'xml' is not one of 'table', 'csv'"),
    (2, "report best d --top 0", "'--top' | greater than or equal to 1"),
    (2, "report best d --log-level LOUD", "'LOUD'; allowed: DEBUG, INFO"),
    (2, "report best d --baseline nobody", "'nobody' | available names: alice, baseline"),
    (2, "report best d --op-type opp", "no op_type is called 'opp' | did you mean op?"),
    (2, "report best d --author alcie", "no author is called 'alcie' | did you mean alice?"),
    (2, "report best d --solution alice_duble", "'alice_duble' | did you mean alice_double"),
    (2, "report best d --hub nowhere://x", "no source 'nowhere'; available sources: hub"),
    (2, "report best --hub ../x", "'../x' is not | write ORGANISATION/NAME"),
    (2, "report regressions d --since yesterday", "'yesterday' | 2026-03-01T12:00 or 30d"),
    (2, "report visualize d -o nope/r.html", NO_FOLDER),
    (2, "report visualize d -o empty", "empty: cannot write: Is a directory | name a file"),
    (2, "report merge d -o file", "file is not an empty folder | give a new folder"),
    (2, "report merge d -o file/new", "file/new | Not a directory | name another path"),
    (2, "report merge d", "Missing option '--output'"),
    (2, "report merge d -o d", "the output d is inside the dataset d"),
    (2, "validate nope", NO_DATASET),
    (2, "validate file", "no dataset: file is not a folder"),
    (2, "validate", "none is named | no-default does not exist | set FIB_DATASET_PATH"),
    (2, "validate d --layer tracks", "'tracks' | choose from: layout, definition"),
    (2, "validate d --outputs pdf", "'pdf' | allowed: stdout, json, html"),
    (2, "validate d --outputs json --output-folder file", "file is not a folder | name another"),
    (2, "validate --hub --outputs json", "reports cannot be saved | --output-folder"),
    (5, "validate empty", "the dataset empty is empty | definitions, solutions"),
    (2, "validate d --output-folder new", "for --outputs json and html"),
    (2, "validate-render nope", "cannot read nope: No such file"),
    (1, "validate-render file", "file:1: not valid JSON | 'fib validate --outputs json'"),
    (2, "run nope", NO_DATASET),
    (2, "run d --definition dubble", "no definition is called 'dubble' | did you mean double?"),
    (2, "run d --workload w9", "no workload is called 'w9' | available workloads: w1, w2"),
    (2, "run d --iterations many", "'--iterations' | try 'fib run --help'"),
    (2, "run d --iterations 0", "iterations | greater than or equal to 1 (got 0)"),
    (2, "run d --timeout nan", "timeout | a finite number (got nan)"),
    (2, "run d --rtol -1", "rtol | greater than or equal to 0 (got -1.0)"),
    (2, "run d --stop-rule nope", "'nope'. Available stop rules: fixed, rse"),
    (2, "run d --stop-param x", "'x' is not of the form KEY=VALUE | target=0.5%"),
    (2, "run d --cache hot", "cache | 'cold' or 'warm' (got 'hot')"),
    (2, "run d --device gpu", NO_DEVICE),
    (2, "run d --device cuda:x", "cpu, cuda or cuda:N | (got 'cuda:x')"),
    (4, "run d --device cuda:99", "cuda:99 | --device cpu"),
    (2, "run d --executor nope", "No executor 'nope'. Available executors: fork, ray, spawn."),
    (2, "run d --timer nope", NO_TIMER),
    (2, "run d --config nope", "cannot read the settings file nope"),
    (2, "run d --config file", "file must hold a mapping | for example 'iterations: 20'"),
    (2, "run d --config c.yaml", "c.yaml: iteratoins | 'iterations'?", ("c.yaml", "iteratoins: 3")),
    (2, "run d --junit nope/x.xml", NO_FOLDER),
    (2, "run --save-results --hub a/b", "traces cannot be saved | --no-save-results"),
    (5, f"run d {QUICK}", "nothing to evaluate; definition 'double' has no workload", (WORK, "")),
    (2, "build d --device gpu", NO_DEVICE),
    (2, "build d --solution nope", "'nope' | available solutions: alice_double"),
    (2, "build d --jobs 0", "build_jobs | greater than or equal to 1 (got 0)"),
    (5, "build d --compile-only --solution alice_double", "in a language that is compiled"),
    (2, "compare a", "two solutions are needed"),
    (2, "compare alice_double bob d", "no solution is called 'bob'"),
    (2, "compare alice_double baseline_double d --alpha 2", "alpha is 2 | above 0 and below 0.5"),
    (2, "compare alice_double baseline_double d --workload w9", "no workload 'w9' | w1, w2"),
    (2, "compare alice_double baseline_double d --timer nope", NO_TIMER),
    (4, "compare alice_double baseline_double d --device cuda:99", "no device 'cuda:99'"),
    (2, "compare --baseline-traces d", "give both --baseline-traces and --candidate-traces"),
    (2, "replay nope.jsonl", "no file 'nope.jsonl' | FILE:LINE"),
    (2, f"replay {RUNS}:x", "invalid line 'x' | start at 1"),
    (2, "replay d", "'d' is a folder | --local"),
    (2, "replay file", "file is not in a dataset | --local"),
    (2, "replay --local d --last 0", "'--last' | greater than or equal to 1"),
    (2, "replay --local d --latency-tolerance much", "'much' | 10% or 0.1"),
    (5, f"replay {WORK}", "is a workload, not a run"),
    (5, f"replay {RUNS}:99", "double.jsonl:99 has no run"),
    (2, "replay --local d --solution nope", "no recorded runs to replay of nope"),
    (2, "submit nope --server http://127.0.0.1:1", "nope does not exist | JSON files of"),
    (2, f"submit {SOL} --server judge", "'judge' is not a URL | http://127.0.0.1:8000"),
    (4, f"submit {SOL} --server http://127.0.0.1:1", "cannot be reached | 'fib serve' is running"),
    (2, "serve --local nope", "nope has no folder definitions | --local"),
    (2, "serve --local d --devices gpu", NO_DEVICE),
    (2, "serve token add x --local d --expires 30", "'30' | 12h, 30d or 4w"),
    (2, "serve token revoke x --local d", "serve.sqlite3 does not exist | token add"),
    (2, "serve backup file --local d", "file exists already | name a new file"),
    (2, "init d", "d is already a dataset | add to it with 'fib new'"),
    (2, "init file/inner", "file is not a folder | give another folder"),
    (5, "new definition x --local empty", "the dataset empty is empty"),
    (2, "new solution x --local d", "Missing option '--definition'"),
    (2, "init file", "file is not a folder | give another folder"),
    (2, "new definition double --local d", "'double' already | choose another name"),
    (2, "new definition '' --local d", "use 1 to 160 letters"),
    (2, "new definition 'a b' --local d", "'a b': use 1 to 160 letters"),
    (2, "new solution s --definition nope --local d", "'nope' | available definitions: double"),
    (2, "new workload double M=3 --local d", "no variable axis or scalar 'M' | available axes: N"),
    (2, "new workload double N=-1 --local d", "'N=-1' is not AXIS=SIZE"),
    (2, "export d -o x.zip", "x.zip | must end in one of .tar.gz, .tgz, .tar | name it x.tar.gz"),
    (2, "export d -o nope/x.tar.gz", NO_FOLDER),
    (2, "export d -o x.tar --definition nope", "'nope' | available definitions: double"),
    (1, "import file -o new", "file: neither a .tar.gz nor a .tar | 'fib export'"),
    (2, "import d -o new --max-gib 0", "'--max-gib' | greater than or equal to 0.001"),
    (2, "import nope -o new", "nope does not exist | give an archive or a folder"),
    (2, "import empty -o new", "empty has no dataset | definitions, solutions"),
    (2, "import d -o file", "file is not an empty folder | give a new folder"),
    (2, "import d -o d", "contain one another | another folder"),
    (2, "show nope d", "named 'nope'"),
    (2, "solution pack empty -o x.json", "empty has no solution.json | 'fib solution unpack'"),
    (2, "solution unpack nope -o new", "nope does not exist | give the JSON file of a solution"),
    (2, f"solution unpack {SOL} -o d", "d is not an empty folder | give a new folder"),
    (2, "schema defn", "'defn' is not one of 'definition', 'solution'"),
    (2, "schema -o file", "file is not a folder | --output"),
    (2, "apply explain d nope", "'nope' | available definitions: double"),
    (2, "doctor d --orphans", "--orphans | --repair"),
    (2, "sanitize d --max-bytes 0", "'--max-bytes' | greater than or equal to 1"),
    (2, "sanitize d d", "only one DATASET can be given"),
    (2, "calibrate --device gpu", NO_DEVICE),
    (2, "timers check --timer nope", NO_TIMER),
    (2, "cache prune --older-than yesterday", "'yesterday' | 12h, 30d or 4w"),
    (2, "cache prune --older-than 30", "'30' | 12h, 30d or 4w"),
    (2, "cache prune --max-size big", "'big' | 500MB or 2GiB"),
    (2, "plugins show nope", "'nope' | fib plugins list"),
    (2, "plugins list --kind nope", "'nope' | available kinds: builder, language"),
    (2, "plugins new 'a b'", "'a b' | letters from a to z, digits and single hyphens"),
    (2, "plugins new x --output file", "'file' is a file"),
]
DATA = [
    (1, "validate d", "double.json: inputs.x.dtype | 'bool', not 'float33'; did you mean 'float32",
     (DEF, "float32", "float33")),
    (1, "validate d", "inputs.x.shape | 'M' is not an axis", (DEF, '"N"]', '"M"]')),
    (1, "validate d", "constraint such as 'twice_n == 2 * N'", (DEF, '"N"]', '"2*N"]')),
    (1, "validate d", "axes.N.type | one of 'const', 'var', not 'vra'", (DEF, '"var"', '"vra"')),
    (1, "validate d", "reference | its line 2: invalid syntax", (DEF, "return", "retrun")),
    (1, "validate d", "define a function 'run' | it defines walk", (DEF, "run(", "walk(")),
    (1, "validate d", 'unknown field "refrence": did you mean "reference"?',
     (DEF, '"reference"', '"refrence"')),
    (1, "validate d --strict", 'op_type | key "op_type" occurs more than once | remove all but one',
     (DEF, '"op_type"', '"op_type": "x", "op_type"')),
    (1, "validate d --strict", 'unknown field "tolerence": did you mean "tolerance"?',
     (DEF, '"op_type"', '"tolerence": 1, "op_type"')),
    (1, "validate d", "double.json:1 | not valid JSON", (DEF, "")),
    (1, "validate d", "double.json | not valid JSON", (DEF, "[" * 100_000)),
    (1, "validate d", "double.json | must be an object", (DEF, "[1]")),
    (1, "validate d", "no definition 'triple' in the dataset", (SOL, '"double"', '"triple"')),
    (1, "validate d", "not of the form 'file::symbol'", (SOL, "main.py::run", "main.py")),
    (1, "validate d", "not among the sources (main.py)", (SOL, "main.py::", "other.py::")),
    (1, "validate d", "'../main.py' must be relative", (SOL, ': "main.py"', ': "../main.py"')),
    (1, "validate d --strict", "unknown language 'pyhton': write 'python'",
     (SOL, '"python"', '"pyhton"')),
    (1, "validate d", "solution is named 'baseline_double'", (SOL, "alice_d", "baseline_d")),
    (1, "validate d --strict", "axes.N | size 0", (WORK, '"N": 16', '"N": 0')),
    (1, "validate d", "jsonl:1: workload.axes.N | not '16'", (WORK, '"N": 16', '"N": "16"')),
    (1, "validate d", "axes.N | has no value", (WORK, '"N": 16', '"M": 16')),
    (1, "validate d", "'random', 'scalar', 'safetensors', not 'randm'", (WORK, "random", "randm")),
    (1, "validate d", "jsonl:2: workload.uuid | jsonl:1 has this uuid", (WORK, '"w2"', '"w1"')),
    (1, "validate d", "blob/x: the file does not exist",
     (WORK, '"type": "random"', f'{BLOB}"blob/x"')),
    (1, "validate d", "'../x' leads out", (WORK, '"type": "random"', f'{BLOB}"../x"')),
    (1, "validate d --strict", "the last line is unfinished", (WORK, None, '{"definition')),
    (1, "validate d", "evaluation.status | not 'PASED'", (RUNS, "PASSED", "PASED")),
    (1, "validate d", "solution is missing: give both", (RUNS, '"solution": "', '"tags": "')),
    (1, "validate d", "latency_ms | not -0.5", (RUNS, '_ms": 0.5', '_ms": -0.5')),
    (1, "validate d", "latency_ms | not nan", (RUNS, '_ms": 0.5', '_ms": NaN')),
    (1, "validate d", "double.jsonl:5 | not valid JSON", (RUNS, None, "broken\n")),
    (1, "report best d", "double.jsonl:5: not valid JSON | left out", (RUNS, None, "broken\n")),
    (1, "export d -o x.tar", "double.jsonl:5: not valid JSON | left out", (RUNS, None, "broken\n")),
    (1, "import d -o new", "double.jsonl:5: not valid JSON | left out", (RUNS, None, "broken\n")),
    (1, "doctor d", "double.jsonl:3 | 'fib doctor --repair'", (WORK, None, "broken\n")),
    (1, "sanitize d", "double.jsonl:3: not valid JSON | 'fib doctor'", (WORK, None, "broken\n")),
    (1, f"solution unpack {SOL} -o new", "alice_double.json:1: not valid JSON", (SOL, "{")),
    (1, "import d.tar.gz -o new", "d.tar.gz: invalid archive", "cut off"),
    (2, "compare alice_double baseline_double d", "alice_double.json:1: not valid", (SOL, "{")),
    (2, "new workload double --local d", "double.json:1: not valid JSON | 'double'", (DEF, "{")),
    (2, "validate-render v.json", "version 99; supported", ("v.json", '{"schema_version": 99}')),
]  # fmt: skip
MACHINE = [
    *((2, command.replace("LONG", LONG), TOO_LONG) for command in (
        "validate LONG", "run LONG", "run d --junit LONG", "replay LONG", "doctor LONG",
        "init LONG", "export d -o LONG.tar", "import d -o LONG", "import LONG -o new",
        "report merge d -o LONG", "plugins new x --output LONG",
        "validate d --outputs json --output-folder LONG",
        "FIB_DATASET_PATH=LONG validate",
    )),
    *((4, command, READ_ONLY, "read-only") for command in (
        "new workload double --local d", "new definition x --local d", "sanitize d",
        "doctor d --repair", "export d -o x.tar", "import d -o new", "plugins new x",
        "report merge d -o empty", f"solution unpack {SOL} -o new",
    )),
    (4, f"run d {QUICK}", "no permission to write to the folder d/traces | --no-save-results",
     "read-only"),
    (4, "validate d --outputs json", "no permission to write to | --output-folder", "read-only"),
    (4, "schema -o empty", "no permission to write to | --output", "read-only"),
    (4, "init empty", "no permission to write to | give another folder", "read-only"),
    (4, "report visualize d -o empty/r.html", "r.html: cannot write: Permission | elsewhere",
     "read-only"),
    (4, "validate d", "d cannot be read | change its permissions", "unreadable"),
    (0, "FIB_CACHE_PATH=empty build d", "2 built", "read-only"),
    *((4, command, NO_ROOM, "full") for command in (
        "export d -o x.tar", "import d.tar.gz -o new", "import d -o new", "report merge d -o new",
        "init new", "new definition x --local d", "new workload double --local d", "schema -o new",
        "plugins new x", "validate d --outputs json", f"solution unpack {SOL} -o new",
    )),
    *((4, command, ELSEWHERE, "windows") for command in (
        f"run d {QUICK}", "build d", "timers check --device cpu", "replay --local d",
        "compare alice_double baseline_double d",
    )),
    (0, "validate d", "0 errors", "windows"),
    (2, f"run d {QUICK}", "d/traces is not a folder | --no-save-results", "no traces"),
    (4, "FIB_CACHE_PATH=file cache list", "file: cannot be read: Not a directory | FIB_CACHE_PATH"),
    (2, "FIB_CPU_THREADS=perhaps validate d", "FIB_CPU_THREADS='perhaps' | unset it"),
    (0, "FIB_CPU_THREADS=perhaps --help", ""),
    (2, "FIB_LOG_LEVEL=loud validate d", "'LOUD'; allowed: DEBUG"),
    (2, "FIB_STRICT_PLUGINS=x report best d", "FIB_STRICT_PLUGINS='x' is neither true"),
    (2, "FIB_CUDA_ARCH_LIST=x build d", "'x' is not a compute capability (8.0"),
    (4, "FIB_PLUGINS=nope report best d", "No module named 'nope' | fib plugins doctor nope"),
    (0, "FIB_STRICT_PLUGINS=0 FIB_PLUGINS=nope report best d", "Plugin nope failed to load"),
    (4, "FIB_NO_PLUGINS=1 doctor d", "'fib doctor' is provided by fib-datasets"),
]  # fmt: skip
MISTAKES = [*COMMANDS, *DATA, *MACHINE]

FOLDERS = ("d/traces/op", "d/traces", "d/workloads/op", "d/workloads", "d/definitions/op", "d")
LIMITS = {"read-only": {"powerless": True}, "unreadable": {"powerless": True}}
LIMITS |= {"full": {"file_size": 100}, "windows": {"hidden": ["fcntl"]}}


@pytest.fixture(scope="module")
def starter(tmp_path_factory):
    started = Starter()
    yield started
    started.end()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def prepare(folder, damages):
    DatasetMaker(folder / "d").sound()
    (folder / "file").write_text("mine")
    (folder / "empty").mkdir()
    with tarfile.open(folder / "d.tar.gz", "w:gz") as tar:
        tar.add(folder / "d", "d")
    for damage in damages:
        if isinstance(damage, tuple):
            path = folder / damage[0]
            text = damage[-1]
            if len(damage) == 3:
                before = path.read_text()
                text = before + text if damage[1] is None else before.replace(damage[1], text)
                assert text != before
            path.write_text(text)
        elif damage == "read-only":
            for name in (*FOLDERS, "empty", "."):
                (folder / name).chmod(0o555)
        elif damage == "unreadable":
            (folder / "d").chmod(0)
        elif damage == "cut off":
            (folder / "d.tar.gz").write_bytes((folder / "d.tar.gz").read_bytes()[:-100])
        elif damage == "no traces":
            (folder / "d/traces").rename(folder / "elsewhere")
            (folder / "d/traces").write_text("")


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: f"{row[1]}, {row[2]}"[:80])
def test_a_mistake(row, starter, cache, tmp_path):
    code, command, parts, *damages = row
    folder = tmp_path / "here"
    prepare(folder, damages)
    before = contents(folder)
    words = shlex.split(command)
    env = {"FIB_CACHE_PATH": str(cache), "FIB_DATASET_PATH": str(tmp_path / "no-default")}
    while words and words[0].startswith("FIB_"):
        name, _, value = words.pop(0).partition("=")
        env[name] = str(folder / value) if value in ("file", "empty") else value
    limits = {name: value for damage in damages if isinstance(damage, str)
              for name, value in LIMITS.get(damage, {}).items()}  # fmt: skip
    done = starter.fib(*words, cwd=folder, env=env, **limits)
    for name in (*FOLDERS, "empty", "."):
        if (folder / name).is_dir():
            (folder / name).chmod(0o755)
    assert done.code == code, done
    told = " ".join((done.err + done.out if code == 1 else done.err).split())
    assert [part for part in parts.split(" | ") if part not in told] == [], done
    for word in ("Traceback", "error: internal", "this is a bug"):
        assert word not in done.err
    after = contents(folder)
    assert {path: after.get(path) for path in before} == before
    if code == 2:
        assert done.out == ""
        assert not done.torch
        assert after == before


@pytest.mark.parametrize("module", ["typer", "flashinfer_bench.cli.output", "fib_datasets"])
def test_ctrl_c_while_modules_are_imported(module):
    code = f"""if True:
        import os, sys
        class Interrupting:
            def find_spec(self, name, *where):
                if name == "{module}":
                    os.kill(os.getpid(), 2)
        sys.meta_path.insert(0, Interrupting())
        sys.argv = ["/bin/fib", "doctor", "nope"]
        from flashinfer_bench.cli.main import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode in (-signal.SIGINT, 130)
    assert done.stderr in ("", "interrupted\n")
