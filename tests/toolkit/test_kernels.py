"""The book's kernels are forks of one process, and apart from each other all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_cache.executors.utils import single_nb_execution
from nbclient.exceptions import DeadKernelError

from toolkit import kernels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux only")


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    with kernels.forked():
        yield


def outputs(folder: Path, *cells: str) -> list[str]:
    """Execute a notebook in this folder: the first output of each cell, as text."""
    new = nbformat.v4
    page = new.new_notebook(cells=[new.new_code_cell(cell) for cell in cells])
    result = single_nb_execution(page, cwd=str(folder), timeout=60, allow_errors=False)
    assert result.err is None
    first = [cell.outputs[0] if cell.outputs else {} for cell in result.nb.cells]
    return [out.get("text", "").strip() or ", ".join(out.get("data", ())) for out in first]


def test_a_kernel_begins_with_torch_in_the_pages_folder(tmp_path: Path) -> None:
    said = outputs(tmp_path, "import os, sys; print('torch' in sys.modules, os.getcwd())")
    assert said == [f"True {tmp_path}"]


def test_a_figure_is_shown(tmp_path: Path) -> None:
    cell = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    assert outputs(tmp_path, cell) == ["text/plain, image/png"]


def test_what_one_kernel_defines_another_does_not_know(tmp_path: Path) -> None:
    outputs(tmp_path, "import torch; torch.mine = 1; mine = 2")
    cell = "import torch; print('mine' in vars(), hasattr(torch, 'mine'))"
    assert outputs(tmp_path, cell) == ["False False"]


def test_a_kernel_may_start_programs_and_wait_for_them(tmp_path: Path) -> None:
    cell = "import subprocess; print(subprocess.run(['sh', '-c', 'exit 3']).returncode)"
    assert outputs(tmp_path, cell) == ["3"]


def test_a_kernel_that_dies_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(DeadKernelError):
        outputs(tmp_path, "import os; os._exit(1)")


def test_kernels_end_with_the_process_that_asked_for_them(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    cell = f"open({str(file)!r}, 'w').write(str(__import__('os').getpid()))"
    code = (
        "import nbformat, time; from toolkit import kernels\n"
        "from jupyter_cache.executors.utils import single_nb_execution as run\n"
        "new = nbformat.v4\n"
        f"page = new.new_notebook(cells=[new.new_code_cell({cell!r}),"
        " new.new_code_cell('import time; time.sleep(600)')])\n"
        "with kernels.forked(): run(page, cwd='.', timeout=None, allow_errors=False)\n"
    )
    builder = subprocess.Popen([sys.executable, "-c", code])
    while not file.exists() or not file.read_text():
        assert builder.poll() is None
        time.sleep(0.05)
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    kernel = kernels.Forked(int(file.read_text()))
    kernel.wait()
    assert not os.path.exists(f"/proc/{kernel.pid}")
