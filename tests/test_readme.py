"""The README keeps its promises: its commands exist, its links resolve, its length is bounded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]


def test_its_length() -> None:
    assert 90 <= README.count("\n") <= 160


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_resolve(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_nox_session_it_names_exists() -> None:
    named = set(re.findall(r"nox -s ([a-z]+)", README))
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert named >= {"demo", "tests"}
    assert [name for name in named if f"def {name}(" not in source] == []


def commands() -> list[str]:
    found = re.findall(r"^(?:\$ )?fib ([a-z]+(?: [a-z]+)?)", README, re.MULTILINE)
    return sorted(set(found))


def test_it_shows_commands() -> None:
    assert len(commands()) >= 4


@pytest.mark.parametrize("command", commands())
def test_every_command_it_shows_exists(command: str) -> None:
    words = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "flashinfer_bench", *words, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:  # the second word may be an argument rather than a sub-command
        done = subprocess.run(
            [sys.executable, "-m", "flashinfer_bench", words[0], "--help"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr


def flags() -> list[tuple[str, str]]:
    lines = re.findall(r"^(?:\$ )?fib (.*)$", README, re.MULTILINE)
    return sorted(
        {(line.split(" --")[0], flag) for line in lines for flag in re.findall(r"--[a-z-]+", line)}
    )


@pytest.mark.parametrize(("command", "flag"), flags())
def test_every_flag_it_shows_exists(command: str, flag: str) -> None:
    words = [word for word in command.split() if re.fullmatch(r"[a-z]+", word)][:2]
    for size in (2, 1):
        done = subprocess.run(
            [sys.executable, "-m", "flashinfer_bench", *words[:size], "--help"],
            capture_output=True,
            text=True,
            check=False,
            env={"COLUMNS": "200", "PATH": "", "TERM": "dumb"},
        )
        if done.returncode == 0:
            break
    assert flag in done.stdout


@pytest.mark.timeout(420)
def test_its_python_example_runs(tmp_path: Path) -> None:
    import shutil

    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert examples
    shutil.copytree(ROOT / "examples" / "sample-dataset", tmp_path / "dataset")
    for example in examples:
        # It compiles some solutions, which takes minutes where much else goes on.
        subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True, timeout=400)
