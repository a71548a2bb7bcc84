"""`topokv bench` from the command line to the file, with a real worker, once."""

import json

import pytest

from topokv.attention import ATTENTION_PATHS
from topokv.cli import main
from topokv.results import read

TINY = [
    *("--kv", "gaussian", "--seq-len", "300", "--selected-tokens", "64", "1000", "--heads", "2"),
    *("--head-dim", "8", "--selector", "witness=0.5,drift=0.5", "--attention", "gather"),
    *("--rounds", "2", "--warmup", "0", "--processes", "1", "--threads", "1", "--device", "cpu"),
]


def test_a_run_leaves_its_table_on_the_screen_and_its_rows_in_the_file(tmp_path, capsys):
    output = tmp_path / "new/bench.json"
    assert main(["bench", *TINY, "--output", str(output)]) == 0
    run = read(output)
    row = run.rows[0]
    assert (row.status, row.selected_tokens, row.selector) == ("ok", 64, "witness=0.5,drift=0.5")
    assert run.settings["threads"] == 1
    assert run.environment["threads"] == 1
    assert str(tmp_path) not in json.dumps([run.command, run.environment, run.settings])
    said = capsys.readouterr()
    first_five = ("seq_len", "selected_tokens", "dense_sdpa_ms", "sparse_selected_ms", "speedup")
    header = next(line for line in said.out.splitlines() if "speedup" in line)
    assert [header.find(name) for name in first_five] == sorted(map(header.find, first_five))
    assert max(map(len, said.out.splitlines())) <= 120
    assert said.err == (
        "topokv bench: gaussian: selected_tokens 1000 exceeds seq_len 300; left out of the grid\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--selector", "driftt"], "unknown selector 'driftt'; expected one of 'drift', "),
        (["--kv", "missing.safetensors"], "missing.safetensors: no such file"),
    ],
)
def test_what_only_the_worker_can_know_is_still_one_line_and_nothing_written(
    tmp_path, capsys, words, line
):
    output = tmp_path / "new/bench.json"
    assert main(["bench", *TINY, *words, "--output", str(output)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"topokv bench: {line}")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_way_to_attend(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    assert [path.name for path in ATTENTION_PATHS if path.name not in words] == []
