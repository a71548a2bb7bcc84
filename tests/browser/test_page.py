from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

LOOKS = [(1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")]


def column(page, name):
    """The texts of one column of the table of all rows, from the top."""
    names = page.locator("#rows-table thead th").evaluate_all("ths => ths.map(t => t.dataset.name)")
    cells = page.locator(f"#rows-table tbody td:nth-child({names.index(name) + 1})")
    return cells.all_text_contents()


def press(page, name):
    page.locator(f"#rows-table th[data-name={name}] button").click()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_page_passes_an_accessibility_checker(opened, width, scheme):
    found = Axe().run(opened(width, scheme)).response["violations"]
    assert [(problem["id"], problem["nodes"][0]["html"]) for problem in found] == []


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_the_page_is_never_wider_than_the_window(opened, width):
    page = opened(width)
    page.locator("#rows-wide").check()
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [375, 1280])
def test_the_answer_is_seen_without_scrolling(opened, width):
    page = opened(width)
    box = page.locator(".answer").bounding_box()
    assert box["y"] + box["height"] < 900
    said = page.locator(".verdict").inner_text()
    assert "At 1,024 of 2,048 tokens use witness: it keeps 95.0 % of the attention" in said
    assert "How sure: clear." in said


def test_pressing_a_columns_name_sorts_by_it_and_again_the_other_way(opened):
    page = opened()
    press(page, "speedup")
    head = page.locator("#rows-table th[data-name=speedup]")
    assert head.get_attribute("aria-sort") == "descending"
    down = [float(text.removesuffix("x")) for text in column(page, "speedup") if text]
    assert down == sorted(down, reverse=True)
    assert len(down) > 50
    assert column(page, "speedup")[-1] == ""
    press(page, "speedup")
    assert head.get_attribute("aria-sort") == "ascending"
    up = [float(text.removesuffix("x")) for text in column(page, "speedup") if text]
    assert up == sorted(down)
    assert column(page, "speedup")[-1] == ""


def test_sorting_works_from_the_keyboard_and_keeps_the_focus(opened):
    page = opened()
    page.locator("#rows-table th[data-name=selector] button").focus()
    page.keyboard.press("Enter")
    cells = column(page, "selector")
    assert cells == sorted(cells)
    focused = page.evaluate("document.activeElement.closest('th').dataset.name")
    assert focused == "selector"


def test_filters_and_words_narrow_the_rows_and_say_how_many(opened):
    page = opened()
    page.locator("select[data-column=selector]").select_option("witness")
    page.locator("select[data-column=on]").select_option("cuda")
    assert set(column(page, "selector")) == {"witness"}
    assert set(column(page, "on")) == {"cuda"}
    assert page.locator("#rows-count").inner_text() == "8 of 57 rows, 8 match"
    page.locator("#rows-search").fill("sample 1024")
    assert column(page, "selected_tokens") == ["1024"]


def test_all_columns_shows_what_the_narrow_table_leaves_out(opened):
    page = opened()
    assert page.locator("#rows-table th[data-name=summary_ms]").count() == 0
    page.locator("#rows-wide").check()
    assert column(page, "summary_ms")[:2] == ["", "1.50"]


def test_each_picture_has_its_numbers(opened):
    page = opened()
    titles = page.locator("figure h3").all_text_contents()
    assert titles == [
        "How much faster is attending fewer tokens?",
        "How much of the attention does each selector keep?",
        "Where does a decode step's time go?",
        "Is the dense baseline a fair one?",
    ]
    for figure in page.locator("figure").all():
        assert figure.locator("svg").bounding_box()["height"] > 150
        figure.locator("summary").click()
        assert figure.locator("tbody tr").count() > 1


def test_pictures_follow_the_colour_scheme(opened):
    def ink(scheme):
        text = opened(1280, scheme).locator("figure svg text").first
        return text.evaluate("element => getComputedStyle(element).fill")

    assert ink("light") != ink("dark")


def test_hostile_text_is_only_ever_text(opened):
    page = opened()
    page.locator("#rows-wide").check()
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0
    assert (
        "<script>window.hacked = 1</script>" in page.locator("#machines-title + .grid").inner_text()
    )
    assert any("<script>" in text for text in column(page, "selector"))
    assert any("failed: <script>" in text for text in column(page, "note"))


def test_what_never_ran_is_there_with_its_reason(opened):
    assert "tests on rocm: skipped at probe: no /dev/kfd" in opened().locator("main").inner_text()
