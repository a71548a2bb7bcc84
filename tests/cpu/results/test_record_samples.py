import pytest

from topokv.results import ResultFileError, Row, Run, load_json
from topokv.results.codec import write

SAMPLES = {"dense_sdpa_ms": ((1.5, 2.5), (3.0,)), "score_ms": ((0.25,),)}


@pytest.fixture
def path(tmp_path):
    row = Row(workload="gaussian", reason='a "samples": {"x": [1]} in a text', samples=SAMPLES)
    run = Run(kind="bench", backend="cpu", created="2026-12-01T00:00:00+00:00", rows=(row, row))
    write(tmp_path / "r.json", run)
    return tmp_path / "r.json"


def test_leaving_samples_out_changes_nothing_else(path):
    whole, light = load_json(path), load_json(path, with_samples=False)
    assert [row.pop("samples") for row in light["rows"]] == [{}, {}]
    assert [row.pop("samples")["score_ms"] for row in whole["rows"]] == [[[0.25]], [[0.25]]]
    assert light == whole


def test_a_file_cut_in_its_samples_is_refused_at_the_same_place(path):
    text = path.read_text()
    path.write_text(text[: text.rindex("0.25")])
    messages = []
    for with_samples in (True, False):
        with pytest.raises(ResultFileError) as caught:
            load_json(path, with_samples=with_samples)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
