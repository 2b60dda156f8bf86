"""A loop that lets a language model write a kernel: propose, evaluate, feed back, keep the best.

::

    python examples/kernel_agent.py --local DATASET --definition NAME --rounds 10 \
        --base-url http://127.0.0.1:8080/v1 --model MODEL          # any OpenAI-compatible server
    python examples/kernel_agent.py --scripted examples/kernel_agent   # a stand-in, on any CPU

Each round is one line of the journal, which is on disk before the next round begins: run the same
command again to go on after a crash. The best solution and all traces are in the dataset.

`propose(history) -> Candidate` is all that the loop knows of a model. A population, or a search
over several models, is another object with this method: the history has every attempt with its
feedback, and `Candidate.parents` says which ones a candidate comes from.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Protocol

from flashinfer_bench.errors import FibError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flashinfer_bench.data import Definition

AUTHOR = "kernel-agent"
_FENCE = re.compile(r"```[\w+-]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"^(?:#|//)\s*([\w./+-]+\.\w+)\s*$", re.MULTILINE)
_SPECS: dict[str, dict[str, Any]] = {
    "python": {"language": "python", "entry_point": "main.py::run"},
    "triton": {"language": "triton", "entry_point": "main.py::run"},
    "tilelang": {"language": "tilelang", "entry_point": "main.py::run"},
    "cuda": {"language": "cuda", "binding": "tvm-ffi", "entry_point": "main.cu::run"},
    "cpp": {"language": "cpp", "binding": "tvm-ffi", "entry_point": "main.cpp::run"},
}
_SPECS["cute-style"] = {**_SPECS["cuda"], "dependencies": ["cutlass"]}
_BY_FILE = {"main.cu": "cuda", "main.cpp": "cpp"}
_ANSWER = """
Answer with the complete source files, each in a fenced block of its own whose first line is a
comment with its path, such as `# {0}`. The entry point is `{1}`, and outputs are passed in.
"""


# ------------------------------------------------------------------------------- what is proposed


@dataclass(frozen=True)
class Candidate:
    """Sources to try. `note` says what they are; without sources, why there are none."""

    sources: dict[str, str] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    parents: tuple[int, ...] = ()  # rounds that it comes from
    tokens: int = 0


@dataclass(frozen=True)
class Attempt:
    """A round: what was proposed, and what came of it. One line of the journal."""

    round: int
    candidate: Candidate
    status: str  # of the evaluation, or NO_ANSWER
    solution: Optional[str] = None
    latency_ms: Optional[float] = None
    speedup: Optional[float] = None
    feedback: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


class Proposer(Protocol):
    """The seam for models, populations and searches."""

    def propose(self, history: Sequence[Attempt]) -> Candidate:
        """Return what to try next."""


class Scripted:
    """A stand-in for a model: the answers of a folder, in the order of their names."""

    def __init__(self, folder: Path) -> None:
        self._answers = sorted(folder.glob("*.md"))
        if not self._answers:
            sys.exit(f"{folder} has no answers; they are files such as 01-first.md")

    def propose(self, history: Sequence[Attempt]) -> Candidate:
        """Return the next answer; the last one again after that."""
        file = self._answers[min(len(history), len(self._answers) - 1)]
        return parsed(file.read_text(encoding="utf-8"), note=file.stem)


class ChatModel:
    """A model behind an endpoint that is compatible with OpenAI's chat completions."""

    def __init__(self, url: str, model: str, key: str, prompt: str, language: str) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=300.0)
        self._model = model
        entry = _SPECS[language]["entry_point"]
        self._prompt = prompt + _ANSWER.format(entry.partition("::")[0], entry)
        self._language = language

    def propose(self, history: Sequence[Attempt]) -> Candidate:
        """Ask the model, with the best and the latest attempt and their feedback."""
        best, last = best_of(history), history[-1] if history else None
        shown = [one for one in (best, last) if one is not None and one.candidate.sources]
        shown = shown[:1] if best is last else shown
        text = "\n\n".join([self._prompt, *(_told(one) for one in shown)])
        body = {"model": self._model, "messages": [{"role": "user", "content": text}]}
        import httpx

        try:  # whatever comes back must not end the loop
            answer = self._http.post("/chat/completions", json=body)
            answer.raise_for_status()
            record = answer.json()
            content = record["choices"][0]["message"]["content"]
            tokens = max(0, int((record.get("usage") or {}).get("total_tokens") or 0))
        except httpx.HTTPStatusError as error:
            wait = error.response.headers.get("retry-after", "")
            if error.response.status_code in (429, 503):
                time.sleep(min(float(wait), 60.0) if wait.isdecimal() else 1.0)
            return Candidate(note=f"the model's server answered {error.response.status_code}")
        except Exception as error:  # noqa: BLE001 - such as JSON of another form
            return Candidate(note=f"no answer of the model: {type(error).__name__}: {error}"[:400])
        found = parsed(content if isinstance(content, str) else "", self._language)
        parents = tuple(one.round for one in shown)
        return Candidate(found.sources, found.spec, found.note, parents, tokens)


def _told(attempt: Attempt) -> str:
    sources = "\n".join(
        f"```\n# {path}\n{text}\n```" for path, text in attempt.candidate.sources.items()
    )
    speed = f", {attempt.latency_ms:.6g} ms" if attempt.latency_ms else ""
    told = json.dumps(attempt.feedback[:2], indent=1)[:12_000]
    return f"Attempt {attempt.round}: {attempt.status}{speed}\n{sources}\nFeedback:\n{told}"


def parsed(answer: str, language: Optional[str] = None, note: str = "") -> Candidate:
    """Return the files of an answer: fenced blocks, with their paths in the first line."""
    sources: dict[str, str] = {}
    for block in _FENCE.findall(answer):
        mark = _MARK.match(block)
        path = mark[1] if mark else None
        if path is None and language is not None and not sources:
            path = _SPECS[language]["entry_point"].partition("::")[0]
        if path is not None:
            sources[path] = block
    if not sources:
        return Candidate(note=note or f"the answer has no files: {answer[:200]!r}")
    if language is None:
        language = next((_BY_FILE[one] for one in sources if one in _BY_FILE), "python")
    return Candidate(sources, dict(_SPECS[language]), note)


# ------------------------------------------------------------------------------------- the loop


def best_of(history: Sequence[Attempt]) -> Optional[Attempt]:
    """Return the fastest attempt that passed, or None."""
    passed = [one for one in history if one.status == "PASSED" and one.latency_ms]
    return min(passed, key=lambda one: one.latency_ms or 0.0, default=None)


class Journal:
    """The attempts so far, one per line; a last line that a crash has torn is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.attempts: list[Attempt] = []
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        if len(whole) < len(lines):
            with path.open("r+b") as file:
                file.truncate(sum(map(len, whole)))
        path.open("ab").close()  # if it cannot be written, nothing need be evaluated
        for number, line in enumerate(whole, 1):
            try:
                record = json.loads(line)
                given = record.pop("candidate")
                candidate = Candidate(**{**given, "parents": tuple(given["parents"])})
                self.attempts.append(Attempt(candidate=candidate, **record))
            except (ValueError, LookupError, TypeError, AttributeError):
                sys.exit(f"error: line {number} of {path} is no attempt; mend it, or move the file")

    def add(self, attempt: Attempt) -> None:
        """Append an attempt; it is on disk when this returns."""
        with self._path.open("ab") as file:
            file.write(json.dumps(asdict(attempt)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.attempts.append(attempt)


class Judge:
    """Evaluates candidates with one warm benchmark."""

    def __init__(self, root: Path, definition: str, settings: dict[str, Any]) -> None:
        from fib_agents.evaluations import Datasets, LocalJudge

        device = settings.pop("device") or ("cuda:0" if _has_gpu() else "cpu")
        self._datasets = Datasets([root])
        self._judge = LocalJudge(self._datasets, [device], {"log_level": "ERROR", **settings})
        self.definition: Definition = self._datasets.definition(definition)

    def evaluate(self, number: int, candidate: Candidate) -> Attempt:
        """Evaluate a candidate on all workloads."""
        from fib_agents.mcp_server import SolutionInput, result_of, solution_from
        from flashinfer_bench.errors import ConfigError

        if not candidate.sources:
            return Attempt(number, candidate, "NO_ANSWER")
        begin = time.monotonic()
        try:
            given = {"destination_passing_style": True, **candidate.spec}
            name = f"{self.definition.name}_round{number}"
            common = {"name": name, "definition": self.definition.name, "author": AUTHOR}
            made = solution_from(SolutionInput(**common, sources=candidate.sources, **given))
            call = self._judge.evaluate(made, None, lambda *step: None, new=True, diagnose=True)
            found = result_of(call.outcome.result())
        except (ValueError, ConfigError) as error:  # it is no valid solution
            feedback = [{"status": "COMPILE_ERROR", "reason": str(error)[:2000]}]
            return Attempt(number, candidate, "COMPILE_ERROR", feedback=feedback)
        return Attempt(
            *(number, candidate, found["status"], found["solution"]),
            latency_ms=found["latency_ms"] if found["status"] == "PASSED" else None,
            speedup=found["speedup"] if found["status"] == "PASSED" else None,
            feedback=found["feedback"][:3],
            seconds=time.monotonic() - begin,
        )

    def close(self) -> None:
        """End all processes."""
        self._judge.close()


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@dataclass(frozen=True)
class Budget:
    """When to stop; rounds and tokens of earlier runs count, seconds are those of this run."""

    rounds: int
    seconds: float
    tokens: int


def improve(
    proposer: Proposer, judge: Judge, journal: Journal, budget: Budget
) -> Iterator[Attempt]:
    """Yield one attempt after the other, until the budget is spent."""
    until = time.monotonic() + budget.seconds
    while len(journal.attempts) < budget.rounds and time.monotonic() < until:
        if sum(one.candidate.tokens for one in journal.attempts) >= budget.tokens:
            return
        candidate = proposer.propose(tuple(journal.attempts))
        attempt = judge.evaluate(len(journal.attempts) + 1, candidate)
        journal.add(attempt)
        yield attempt


def main() -> int:
    """Run the loop, and print the best solution."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--local",
        type=Path,
        metavar="DATASET",
        help="default with --scripted: a copy of the script's dataset, beside the journal",
    )
    parser.add_argument("--definition", metavar="NAME", help="default: the only one")
    parser.add_argument("--language", default="cuda", choices=sorted(_SPECS))
    parser.add_argument("--journal", type=Path, default=Path("kernel-agent.jsonl"))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--tokens", type=int, default=sys.maxsize)
    parser.add_argument(
        "--scripted", type=Path, metavar="FOLDER", help="answers instead of a model"
    )
    parser.add_argument("--base-url", default=os.environ.get("OPENAI_BASE_URL"))
    parser.add_argument("--model", default=os.environ.get("OPENAI_MODEL"))
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", ""))
    parser.add_argument("--device")
    parser.add_argument("--iterations", type=int, default=20)
    given = parser.parse_args()
    if given.scripted is None and not (given.base_url and given.model):
        parser.error("give --base-url and --model, or --scripted FOLDER")
    if given.local is None and given.scripted is None:
        parser.error("give --local DATASET")
    try:
        return _run(given, parser)
    except (FibError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:  # the journal has all rounds that have ended
        return 130


def _run(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    root = given.local or _copied(given.scripted, given.journal)
    names = [json.loads(one.read_text())["name"] for one in root.glob("definitions/**/*.json")]
    name = given.definition or (names[0] if len(names) == 1 else None)
    if name is None:
        told = f"give --definition, one of: {', '.join(sorted(names))}"
        parser.error(told if names else f"there are no definitions in {root}")
    settings = {"device": given.device, "iterations": given.iterations, "num_trials": 2}
    journal = Journal(given.journal)
    judge = Judge(root, name, settings)
    if journal.attempts:
        print(f"going on after round {len(journal.attempts)} of {given.journal}", file=sys.stderr)
    try:
        proposer = _proposer(given, judge.definition)
        budget = Budget(given.rounds, given.seconds, given.tokens)
        for one in improve(proposer, judge, journal, budget):
            speed = f" {one.latency_ms:.6g} ms, {one.speedup:.3g}x" if one.latency_ms else ""
            why = f" ({one.candidate.note})" if one.candidate.note else ""
            print(f"round {one.round}: {one.status}{speed}{why}", file=sys.stderr, flush=True)
    finally:
        judge.close()
    best = best_of(journal.attempts)
    print(best.solution if best is not None else "no attempt passed")
    return 0 if best is not None else 1


def _proposer(given: argparse.Namespace, definition: Definition) -> Proposer:
    if given.scripted is not None:
        return Scripted(given.scripted / "answers")
    from fib_agents.kernel_prompts import LANGUAGES, prompt_for

    language = given.language if given.language in LANGUAGES else "cuda"
    prompt = prompt_for(definition, language)
    return ChatModel(given.base_url, given.model, given.api_key, prompt, given.language)


def _copied(scripted: Path, journal: Path) -> Path:
    """Return a copy of the script's dataset, which the run may write to."""
    import shutil

    root = journal.with_suffix(".dataset")
    if not root.exists():
        shutil.copytree(scripted / "dataset", root)
    return root


if __name__ == "__main__":
    sys.exit(main())
