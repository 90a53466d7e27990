"""Widgets hold every frame beforehand and follow their controls in a browser, without a kernel."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
import torch
from ipywidgets.embed import embed_data, embed_minimal_html

from toolkit import widgets

EMBED = Path(__file__).parents[2] / "book/_assets/vendor/html-manager/embed.js"
CONTROLS = {"mask": ["none", "causal"], "heads": ["1", "2", "4"], "heat": list("12345")}


def build() -> ipywidgets.VBox:
    return widgets.frames(CONTROLS, lambda *chosen: f"<b>frame {'-'.join(chosen)}</b>",
                          start={"heads": 1})  # fmt: skip


def inside(root: ipywidgets.Widget) -> list[ipywidgets.Widget]:
    return [root, *(w for child in getattr(root, "children", ()) for w in inside(child))]


def shown(tree: ipywidgets.Widget) -> str:
    while isinstance(tree, ipywidgets.Stack):
        tree = tree.children[tree.selected_index]
    return tree.value


def test_there_is_a_frame_for_every_combination() -> None:
    frames = [w.value for w in inside(build()) if isinstance(w, ipywidgets.HTML)]
    assert sorted(frames) == sorted(
        f"<b>frame {'-'.join(c)}</b>" for c in product(*CONTROLS.values())
    )


def test_the_frame_at_the_start_is_the_one_the_controls_say() -> None:
    assert shown(build().children[-1]) == "<b>frame none-2-1</b>"


def test_every_stack_is_linked_to_the_control_of_its_level() -> None:
    root = build()
    state = embed_data(views=[root])["manager_state"]["state"].values()
    links = [s["state"] for s in state if s["model_name"] == "DirectionalLinkModel"]
    mine = {f"IPY_MODEL_{w.model_id}": w for w in inside(root)}
    linked = {k["target"][0]: k["source"] for k in links if k["target"][0] in mine}
    assert set(linked) == {k for k, w in mine.items() if isinstance(w, ipywidgets.Stack)}
    for key, (source, attribute) in linked.items():
        control = mine[source]
        offers = control.max + 1 if attribute == "value" else len(control.options)
        assert offers == len(mine[key].children)


@pytest.mark.parametrize("controls", [{}, {"mask": []}])
def test_a_widget_without_anything_to_choose_is_refused(controls: dict) -> None:
    with pytest.raises(ValueError, match="control"):
        widgets.frames(controls, lambda: "")


def test_a_heat_table_prints_its_numbers_and_keeps_masked_entries_apart() -> None:
    table = widgets.heat_table(torch.tensor([[1.0, 0.0], [0.3, 0.7]]), ["a", "b"], ["x", "y"], "c")
    assert table.count("<td class=z>0</td>") == 1
    assert all(f">{number}<" in table for number in ("1.00", "0.30", "0.70"))
    assert "<caption>c</caption>" in table
    assert table.count("scope=row") == table.count("scope=col") == 2


def test_a_heat_table_says_where_an_entry_is_not_a_number() -> None:
    table = widgets.heat_table([[float("nan"), 1.0]], ["a"], ["x", "y"], "c")
    assert table.count(">NaN<") == 1


def test_labels_of_a_heat_table_are_text_not_markup() -> None:
    assert "<script>" not in widgets.heat_table([[1.0]], ["<script>"], ["&"], "<i>")


def test_a_heat_table_with_labels_that_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="rows"):
        widgets.heat_table([[1.0]], ["a", "b"], ["x"], "c")


@pytest.mark.parametrize("share", [step / 20 for step in range(1, 21)])
def test_every_cell_has_enough_contrast(share: float) -> None:
    """WCAG AA: 4.5 to 1 for small text."""
    cell = widgets._cell(share)
    colour = cell.split("--c:#")[1][:6]
    behind = widgets._luminance(*(int(colour[i : i + 2], 16) for i in (0, 2, 4)))
    ink = 1.0 if "class=d" in cell else 0.0
    light, dark = max(behind, ink), min(behind, ink)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.browser
@pytest.mark.skipif(not EMBED.exists(), reason="the book's scripts are not vendored here")
def test_controls_choose_the_frame_in_a_browser(browser: Any, tmp_path: Path) -> None:
    page_file = tmp_path / "widget.html"
    embed_minimal_html(page_file, views=[build()], requirejs=False, embed_url=EMBED.as_uri())
    text = page_file.read_text(encoding="utf-8")  # a file has no origin that could be checked
    page_file.write_text(text.replace(' crossorigin="anonymous"', ""), encoding="utf-8")
    page = browser.new_page()
    page.goto(page_file.as_uri())
    frame = page.locator("b")
    frame.wait_for(timeout=20_000)
    assert frame.all_inner_texts() == ["frame none-2-1"]
    page.get_by_role("button", name="causal").click()
    assert frame.all_inner_texts() == ["frame causal-2-1"]
    page.get_by_role("button", name="4").click()
    assert frame.all_inner_texts() == ["frame causal-4-1"]
    handle = page.get_by_role("slider")
    handle.focus()
    handle.press("ArrowRight")
    handle.press("ArrowRight")
    assert frame.all_inner_texts() == ["frame causal-4-3"]
    assert page.locator(".widget-label", has_text="3").count() == 1
    page.close()
