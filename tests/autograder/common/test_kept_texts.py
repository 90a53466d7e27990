"""Answers that are kept are bounded by the length of the texts that they belong to."""

from __future__ import annotations

from autograder.common.kept_texts import kept_for


def test_the_latest_are_kept_and_the_oldest_go() -> None:
    asked: list[str] = []

    @kept_for(characters=10)
    def shout(text: str) -> str:
        asked.append(text)
        return text.upper()

    assert [shout(text) for text in ("aaaa", "bbbb", "aaaa", "cccc")] == [
        "AAAA", "BBBB", "AAAA", "CCCC"]  # fmt: skip
    assert asked == ["aaaa", "bbbb", "cccc"]
    shout("aaaa")  # Used after bbbb, which had to go for cccc.
    assert asked == ["aaaa", "bbbb", "cccc"]
    shout("bbbb")
    assert asked[-1] == "bbbb"


def test_a_text_beyond_the_bound_drives_out_the_others_until_the_next_one() -> None:
    asked: list[int] = []

    @kept_for(characters=10)
    def count(texts: tuple[str, ...]) -> int:
        asked.append(len(texts))
        return len(texts)

    many = ("x" * 6, "y" * 6)
    count(("x",))
    count(many)
    count(many)
    assert asked == [1, 2]
    count(("x",))
    count(many)
    assert asked == [1, 2, 1, 2]
