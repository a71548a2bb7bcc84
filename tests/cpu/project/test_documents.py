"""What the documents say: commands that exist, links that lead somewhere, code that runs.

Sessions are run by CI and by .ci/run; here it is held that they exist. The README's own commands
that need no model are run as they stand, in a folder with results to read.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topokv import cli
from topokv.bench import Settings

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = ROOT / "results" / "reference"


def commands(text):
    """Every command of the console blocks, `&&` taken apart, comments left out."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in re.findall(r"^\$ (.*)$", block.replace("\\\n", ""), re.MULTILINE):
            for command in line.split("&&"):
                words = shlex.split(command, comments=True)
                yield [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]


def documented(program):
    return [
        pytest.param(words, id=f"{path.stem}-{' '.join(words)[:60]}")
        for path in DOCUMENTS
        for words in commands(path.read_text(encoding="utf-8"))
        if words[: len(program)] == program
    ]


@pytest.fixture(scope="module")
def sessions():
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "--list"], cwd=ROOT, capture_output=True, text=True
    )
    return set(re.findall(r"^[*-] (\w+)", listed.stdout, re.MULTILINE))


@pytest.mark.parametrize("words", documented(["nox"]))
def test_documented_sessions_exist(words, sessions):
    own = words[: words.index("--")] if "--" in words else words
    named = own[own.index("-s") + 1 :] if "-s" in own else []
    assert named
    assert set(named) - sessions == set()


@pytest.mark.parametrize("words", documented(["topokv"]) + documented(["python", "-m", "topokv"]))
def test_documented_commands_are_understood(words):
    arguments = words[1:] if words[0] == "topokv" else words[3:]
    if arguments != ["--version"]:
        cli.build_parser().parse_args(arguments)


def needs_no_model(words):
    return words[0] == "topokv" and words[1] != "capture" and "book.safetensors" not in words


@pytest.mark.parametrize(
    "words",
    [pytest.param(w, id=" ".join(w)[:60]) for w in commands(README) if needs_no_model(w)],
)
def test_readme_commands_run_as_they_stand(words, tmp_path, monkeypatch, capsys):
    (tmp_path / "results").mkdir()
    source = next(REFERENCE.glob("bench-cpu*.json"))
    for name in ("base.json", "new.json", "results/bench-cpu.json"):
        shutil.copy(source, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert cli.main(words[1:]) == 0
    assert capsys.readouterr().out


def test_readme_code_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["output"].shape == (1, 8, 1, 64)
    assert names["token_ids"].shape == (1, 8, 512)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_to_files(path):
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    files = [link for link in links if not re.match(r"https?:", link)]
    assert [link for link in files if not (path.parent / link).exists()] == []


def test_readme_names_every_file_of_the_package():
    house = re.search(r"```text\n(noxfile\.py.*?)```", README, re.DOTALL)[1]
    rooms = {p.name + "/" * p.is_dir() for p in (ROOT / "topokv").iterdir()}
    left_out = ("__", "py.typed", "pyproject.toml")
    assert {room for room in rooms if not room.startswith(left_out) and room not in house} == set()


def test_readme_flags_keep_their_defaults():
    defaults = Settings()
    assert (defaults.block_size, defaults.sink_blocks, defaults.local_blocks) == (64, 1, 2)
    assert "At 192 tokens and fewer (blocks of 64, the\ndefaults)" in README


def test_reference_results_can_be_read(capsys):
    assert cli.main(["report", str(REFERENCE), "--strict", "--format", "json"]) == 0
    sources = {Path(row["source"]).name for row in json.loads(capsys.readouterr().out)}
    assert sources == {path.name for path in REFERENCE.glob("*.json")}


def test_contributing_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:topokv|tests|benchmarks)/[\w./]*)`", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
