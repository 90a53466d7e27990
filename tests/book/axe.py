"""axe-core in an open page: what keeps people out who see, hear or move otherwise.

The rules of colour take most of the time, for each element that they look at; so of all text with
the same colours, size and weight they look at the first, on the first page that has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT

# The rules of colour, and the elements that each looks at: those that carry a mark
MARK = "data-axe-colours"
COLOURS = {"color-contrast": f"[{MARK}]", "link-in-text-block": f"a[href][{MARK}]"}
# What is folded away is read too, and colours change at once from one theme to the other.
PREPARE = """colours => {
  document.querySelectorAll('.bd-main details').forEach(one => { one.open = true; });
  const still = document.createElement('style');
  still.textContent = '*, *::before, *::after { transition: none !important }';
  document.head.append(still);
  axe.configure({rules: Object.entries(colours).map(([id, selector]) => ({id, selector}))});
}"""
RUN = """async ({colours, mark, only, known}) => {
  const behind = node => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const {backgroundColor, backgroundImage, opacity} = getComputedStyle(at);
      layers.push(backgroundColor, backgroundImage, opacity);
      if (backgroundColor.startsWith('rgb(')) break;
    }
    return layers.filter(layer => !/^(rgba\\(0, 0, 0, 0\\)|none|1)$/.test(layer));
  };
  document.querySelectorAll(`[${mark}]`).forEach(node => node.removeAttribute(mark));
  const kinds = new Set(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (only !== 'structure' && texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    if (node.closest('mjx-assistive-mml, script, style')) continue;
    const {color, fontSize, fontWeight} = getComputedStyle(node);
    const around = node.matches('a') ? getComputedStyle(node.parentElement).color : '';
    const kind = [color, around, fontSize, fontWeight, ...behind(node)].join('|');
    if (known.includes(kind) || kinds.has(kind)) continue;
    kinds.add(kind);
    node.setAttribute(mark, '');
  }
  const options = {resultTypes: ['violations'], preload: false};
  if (only === 'colours') options.runOnly = {type: 'rule', values: colours};
  if (!kinds.size) options.rules = Object.fromEntries(colours.map(id => [id, {enabled: false}]));
  const idle = only === 'colours' && !kinds.size;
  const plain = text => text.replaceAll(`[${mark}=""]`, '').replaceAll(` ${mark}=""`, '');
  const {violations} = idle ? {violations: []} : await axe.run(document, options);
  const found = violations.flatMap(rule => rule.nodes.map(node => ({
    rule: rule.id, impact: node.impact || rule.impact, element: plain(node.html).slice(0, 160),
    place: plain(node.target.flat().join(' ')),
    remedy: node.failureSummary.replace(/\\s+/g, ' ')})));
  return [found, [...kinds]];
}"""


@dataclass(frozen=True)
class Finding:
    """One element that breaks one rule."""

    setting: str
    rule: str
    impact: str
    place: str
    element: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.setting}: {self.rule} ({self.impact}) at {self.place}\n"
            f"  {self.element}\n  {self.remedy}"
        )


def prepare(page: Any) -> None:
    """Bring axe-core into an open page, unfold what is folded and let colours change at once."""
    page.evaluate(AXE_SCRIPT)
    page.evaluate(PREPARE, COLOURS)


def findings(
    page: Any, setting: str, only: str = "", known: set[str] | None = None
) -> list[Finding]:
    """What axe-core finds in a page that is prepared.

    Args:
        page: of Playwright.
        setting: how the page is looked at, for the message.
        only: `colours` or `structure` for the rules of colour or all others; all if empty.
        known: kinds of text whose colours have been looked at; those of this page are added.
    """
    known = set() if known is None else known
    asked = {"colours": list(COLOURS), "mark": MARK, "only": only, "known": list(known)}
    found, kinds = page.evaluate(RUN, asked)
    known.update(kinds)
    return [Finding(setting, **one) for one in found]
