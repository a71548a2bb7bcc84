from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from report_runs import make_row, make_run

from topokv.report.formats.as_html import render
from topokv.report.plots import write_plots
from topokv.report.report import Request, build
from topokv.results.codec import write


def report_of(folder: Path, *runs):
    for i, run in enumerate(runs):
        write(folder / f"{i}.json", run)
    return build(Request(paths=(folder,)))


def test_the_page_names_no_address_but_its_own_namespaces(tmp_path):
    text = render(report_of(tmp_path, make_run()))
    addresses = set(re.findall(r"https?://[^\"' <]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "default-src 'none'" in text


def test_one_report_is_always_the_same_page(tmp_path):
    report = report_of(tmp_path, make_run())
    assert render(report) == render(report)


def test_ids_are_unique_and_every_reference_has_its_target(tmp_path):
    text = render(report_of(tmp_path, make_run(), make_run("cuda")))
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)


def test_nine_machines_with_500_rows_each_stay_under_a_megabyte_and_a_half(tmp_path):
    rows = [replace(make_row("witness", i % 4), seed=i) for i in range(500)]
    rows = [
        replace(row, metrics={k: v and v * (1 + i / 997) for k, v in row.metrics.items()})
        for i, row in enumerate(rows)
    ]
    runs = [
        make_run(backend, fingerprint=f"{backend}{machine}", rows=tuple(rows))
        for backend in ("cpu", "cuda", "rocm")
        for machine in range(3)
    ]
    assert len(render(report_of(tmp_path, *runs)).encode()) < 1_500_000


def test_a_report_without_rows_is_still_a_page(tmp_path):
    text = render(report_of(tmp_path, make_run(rows=(make_row("drift", 0),))))
    assert "No run on a real model" in text


def test_pictures_are_written_as_svg_and_png(tmp_path):
    report = report_of(tmp_path, make_run())
    paths = write_plots(report, tmp_path / "plots")
    assert [path.name for path in paths[:4]] == [
        *("speedup.svg", "speedup.png", "recall.svg", "recall.png")
    ]
    before = [path.read_bytes() for path in paths if path.suffix == ".svg"]
    again = [p.read_bytes() for p in write_plots(report, tmp_path / "plots") if p.suffix == ".svg"]
    assert before == again
