"""The bench of pages: what it waits for; never how long."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autograder.benchmarks.pages import page_seconds

# The control is there at once and answers only after a while; formulas take their time too.
PAGE = """<!DOCTYPE html>
<meta charset="utf-8">
<article class="bd-article">
  <p>A formula: <span class="math">x</span></p>
  <input type="range" min="0" max="10" value="5"> <output></output>
</article>
<script>
  window.MathJax = {};
  const set = new Promise(done => setTimeout(done, 200));
  setTimeout(() => { MathJax.startup = {promise: set}; }, 100);
  setTimeout(() => {
    const [control, shown] = document.querySelectorAll('input, output');
    control.addEventListener('input', () => { shown.textContent = control.value; });
  }, 600);
</script>
"""


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_a_page_is_ready_when_formulas_are_set_and_its_first_control_answers(
    tmp_path: Path,
) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "index.html").write_text(PAGE)
    (tmp_path / "plain.html").write_text("<article class='bd-article'>No more than this.</article>")
    # In a thread of its own: other tests keep a browser, and its loop, in this one.
    with ThreadPoolExecutor(1) as beside:
        names = ["late/index", "plain"]
        late, plain = beside.submit(page_seconds, tmp_path, names, visits=1).result()
        with pytest.raises(RuntimeError, match="no page other; run make book first"):
            beside.submit(page_seconds, tmp_path, ["other"], visits=1).result()
    assert (late.name, plain.name) == ("late/index", "plain")
    assert late.value >= 0.6
    assert plain.value > 0
