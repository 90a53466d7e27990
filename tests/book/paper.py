"""How wide a sheet is, and what on a page does not fit on it."""

SHEET = 665  # CSS pixels between the margins of A4

# Elements that reach over the sheet's edge, and boxes that would scroll. Formulas are made of boxes
# that overlap; each counts as a whole.
TOO_WIDE = """() => [...document.querySelectorAll('.bd-article *')]
  .filter(e => e.checkVisibility() && !e.closest('svg, mjx-container *'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1
    || (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
      && getComputedStyle(e).overflowX !== 'visible'))
  .map(e => `${e.tagName}.${e.className} ${e.textContent.trim().slice(0, 40)}`)"""
