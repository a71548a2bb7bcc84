"""The report's page, made from plausible runs and opened in a real browser without a window.

The one skip of this folder: where there is no browser. In CI that is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from report_runs import make_row, make_run

from topokv.report.formats.as_html import render
from topokv.report.report import Request, build
from topokv.results import Row, Run
from topokv.results.codec import write

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\" & $x$"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        said = f"no browser on the path: {', '.join(NAMES)}"
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(said)
    with sync_playwright() as playwright:
        # A container's root user has no sandbox.
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two machines with a failed row, hostile text, and tests that never ran."""
    folder = tmp_path_factory.mktemp("results")
    run = make_run("cpu")
    bad = replace(make_row("drift", 3), status="failed", reason=HOSTILE, metrics={})
    write(folder / "cpu.json", replace(run, rows=(bad, *(r for r in run.rows if r.key != bad.key))))
    hostile = dict(make_run("cuda").environment) | {"device": HOSTILE}
    odd = replace(make_row("witness", 2), selector=HOSTILE)
    cuda = make_run("cuda")
    write(folder / "cuda.json", replace(cuda, environment=hostile, rows=(*cuda.rows, odd)))
    row = Row(status="skipped", step="probe", reason="no /dev/kfd")
    created = "2026-12-01T00:00:00+00:00"
    write(folder / "rocm.json", Run(kind="tests", backend="rocm", created=created, rows=(row,)))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(build(Request(paths=(folder,)))), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Browser, page_file: Path) -> Iterator[Callable[..., Page]]:
    """A function that opens the page at a width and in a colour scheme.

    Whatever the page says on the console or asks of the network fails the test.
    """
    contexts, said = [], []

    def open_page(width: int = 1280, scheme: str = "light") -> Page:
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked(request.url))
        page.goto(page_file.as_uri())
        return page

    def asked(url: str) -> None:
        if not url.startswith(("file:", "data:")):
            said.append(f"asked the network for {url}")

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
