"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(path: Path, writer: Callable[[Path], Any]) -> None:
    """Write a file so that whoever reads sees the old one or the new one, no half of it.

    Args:
        path: of the file; its folder is made if it is missing.
        writer: called with the path that it is to write to, in the same folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        writer(half)
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)
