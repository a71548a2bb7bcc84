"""Workflows give a stranger's pull request nothing to use. Read as text: no YAML parser needed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = re.compile(
    r"^(?P<indent> *)(?:- )?run: *(?P<first>\S.*)\n(?P<rest>(?:(?P=indent) +.*\n|\n)*)",
    re.MULTILINE,
)

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="only a checkout has workflows")
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def scripts(text):
    """What every `run:` hands to a shell."""
    return [match["first"] + "\n" + match["rest"] for match in SCRIPTS.finditer(text)]


def test_scripts_are_found_in_one_line_and_in_blocks():
    text = "- run: one\n- name: x\n  run: |\n    two\n\n    three\n  env:\n    A: b\n"
    assert [script.split() for script in scripts(text)] == [["one"], ["|", "two", "three"]]


@each_workflow
def test_no_expression_reaches_a_shell_except_through_the_environment(path):
    assert [s for s in scripts(path.read_text(encoding="utf-8")) if "${{" in s] == []


@each_workflow
def test_a_strangers_code_never_meets_secrets_or_a_token_that_writes(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"pull_request_target|workflow_run|secrets\.|: write\b|write-all", text)
    assert re.search(r"^permissions: \{\}$", text, re.MULTILINE)
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")


@each_workflow
def test_actions_are_pinned_by_commit_with_the_version_beside(path):
    used = re.findall(r"uses: (?!\./)(.*)", path.read_text(encoding="utf-8"))
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", one)] == []


@each_workflow
def test_self_hosted_runners_never_run_pull_requests(path):
    words = re.sub(r" *#.*", "", path.read_text(encoding="utf-8"))
    assert "self-hosted" not in words or "pull_request" not in words


@each_workflow
def test_what_workflows_install_is_pinned_with_hashes(path):
    installs = re.findall(r"pip install (.*)", path.read_text(encoding="utf-8"))
    assert all(words.startswith("--require-hashes ") for words in installs)


@pytest.mark.parametrize("name", ["ci", "lint"])
def test_every_pinned_package_has_a_version_and_hashes(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", "").splitlines() if line[:1] not in ("", "#")]
    assert lines
    assert [line for line in lines if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:", line)] == []
