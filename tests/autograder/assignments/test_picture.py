"""The picture at a unit's top: a box for each exercise, arrows from what it uses."""

from __future__ import annotations

import base64
import itertools
import re
from xml.etree import ElementTree

import nbformat
import pytest
from bs4 import BeautifulSoup

from autograder.assignments import builder, picture
from autograder.common import paths
from autograder.units.assignment import Exercise, load

SVG = "{http://www.w3.org/2000/svg}"


def exercises(*names: str) -> list[Exercise]:
    return [Exercise(name, name, 2.0, "s") for name in names]


def drawn(unit: str) -> ElementTree.Element:
    """The picture in the unit's notebook."""
    notebook = nbformat.read(paths.EXERCISES / unit / f"{unit}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if cell.id == "picture"]
    image = BeautifulSoup(cell.source, "html.parser").img
    head, _, data = image["src"].partition(",")
    assert head == "data:image/svg+xml;base64"
    return ElementTree.fromstring(base64.b64decode(data))


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of each box; the first rectangle is the paper."""
    found = []
    for one in root.findall(f".//{SVG}rect")[1:]:
        x, y, width, height = (float(one.get(key, 0)) for key in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


@pytest.mark.parametrize("unit", builder.sources())
def test_every_unit_has_a_box_for_each_exercise_and_none_overlap(unit: str) -> None:
    root = drawn(unit)
    said = [text.text or "" for text in root.findall(f".//{SVG}text")]
    names = [exercise.name for exercise in load(unit).exercises]
    together = "".join(text for text in said if not re.fullmatch(r"\d+|given|[\d.]+ points?", text))
    for number, name in enumerate(names, 1):
        assert name in together
        assert str(number) in said
    found = boxes(root)
    assert len(found) == len(names) + said.count("given")
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert width <= 700
    for left, top, right, bottom in found:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    for one, other in itertools.combinations(found, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart


@pytest.mark.parametrize("unit", builder.sources())
def test_no_arrow_crosses_a_box_and_each_ends_at_what_uses_it(unit: str) -> None:
    root = drawn(unit)
    found = boxes(root)
    arrows = root.findall(f".//{SVG}g/{SVG}path")
    for arrow in arrows:
        numbers = [float(number) for number in re.findall(r"-?\d+", arrow.get("d", ""))]
        start, end = (numbers[0], numbers[1]), (numbers[-2], numbers[-1])
        assert any(
            left < start[0] < right and start[1] == bottom for left, _, right, bottom in found
        )
        assert any(left < end[0] < right and end[1] == top for left, top, right, _ in found)
        # Between two rows it bends; beside the boxes of a row it goes straight down.
        for match in re.finditer(r"(-?\d+) (-?\d+)V(-?\d+)", arrow.get("d", "")):
            x, top, bottom = map(float, match.groups())
            assert not [
                box for box in found if box[0] <= x <= box[2] and box[1] < bottom and top < box[3]
            ]


def test_arrows_are_those_of_what_is_used() -> None:
    three = exercises("first", "second", "third")
    uses = {"second": ("first", "part"), "part": ("first",), "first": (), "third": ()}
    root = ElementTree.fromstring(picture.svg(three, uses))
    assert len(root.findall(f".//{SVG}g/{SVG}path")) == 3
    dashed = [one for one in root.findall(f".//{SVG}rect") if one.get("stroke-dasharray")]
    assert len(dashed) == 1
    tops = {box[1] for box in boxes(root)}
    assert len(tops) == 4  # first, part, second, and third by itself
    assert picture.description(three, uses) == (
        "The parts of this unit. second uses first and part; part uses first."
    )
    assert (
        picture.description(exercises("a"), {}) == "The parts of this unit. Each stands by itself."
    )


def test_a_given_part_that_no_exercise_uses_is_not_drawn() -> None:
    text = picture.svg(exercises("first"), {"first": (), "part": ("first",)})
    assert "part<" not in text


def test_many_exercises_that_use_one_another_fit() -> None:
    names = [f"a_name_of_some_length_{number}" for number in range(11)]
    uses = {name: tuple(names[:number]) for number, name in enumerate(names)}
    root = ElementTree.fromstring(picture.svg(exercises(*names), uses))
    assert len(boxes(root)) == 11
    wide = dict.fromkeys(names[:-1], ()) | {names[-1]: tuple(names[:-1])}
    found = boxes(ElementTree.fromstring(picture.svg(exercises(*names), wide)))
    assert min(box[0] for box in found) >= 0
    assert max(box[2] for box in found) <= 700


def test_the_same_exercises_give_the_same_bytes() -> None:
    unit = load("transformer-model")
    uses = {exercise.name: exercise.needs for exercise in unit.exercises}
    assert picture.markdown(unit.exercises, uses) == picture.markdown(unit.exercises, uses)
    assert "\n" not in picture.markdown(unit.exercises, uses)


def test_long_names_are_cut_between_words() -> None:
    assert picture._lines("scaled_dot_product_attention", 17) == [
        "scaled_dot_",
        "product_attention",
    ]
    assert picture._lines("FusedMultiHeadAttention", 17) == ["FusedMulti", "HeadAttention"]
    assert picture._lines("causal_mask", 17) == ["causal_mask"]
