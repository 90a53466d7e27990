"""Exports of a class of three in the documented forms, as zips."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def notebook(text: str) -> bytes:
    """A notebook that can be told from others."""
    cell = {"cell_type": "markdown", "metadata": {}, "source": [text], "id": "a"}
    data = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(data).encode()


def zipped(path: Path, files: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> Path:
    """A zip of these files, deflated."""
    items = files.items() if isinstance(files, Mapping) else files
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in items:
            archive.writestr(name, data)
    return path


CANVAS = {
    "lovelaceada_1201_880001_attention-scores.ipynb": notebook("ada"),
    "hoppergrace_LATE_1202_880002_attention-scores-3.ipynb": notebook("grace"),
    "müllerzoë_1203_880003_My Attention.ipynb": notebook("zoë"),
    "müllerzoë_1203_880004_plot.png": b"png",
}
MOODLE = {
    "Ada Lovelace_401_assignsubmission_file/attention-scores.ipynb": notebook("ada"),
    "Grace Hopper_402_assignsubmission_file_/week1/attention-scores.ipynb": notebook("grace"),
    "Zoë Müller_403_assignsubmission_file_attention-scores.ipynb": notebook("zoë"),
    "Zoë Müller_403_assignsubmission_onlinetext/onlinetext.html": b"<p>see file</p>",
}
METADATA = """---
submission_501:
  :submitters:
  - :name: Ada Lovelace
    :sid: '100'
    :email: ada@example.edu
  :created_at: 2029-12-30 07:13:47.644186000 Z
  :score: 3.0
  :status: processed
  :history:
  - :id: 490
    :created_at: 2029-12-29 07:00:00.000000000 Z
    :score: 1.0
submission_502:
  :submitters:
  - :name: Grace Hopper
    :sid: '101'
    :email: grace@example.edu
  - :name: Zoë Müller
    :sid:
    :email: zoe@example.edu
  :created_at: 2029-12-31 13:00:00.000000000 +01:00
  :history: []
"""
GRADESCOPE = {
    "assignment_77_export/submission_metadata.yml": METADATA.encode(),
    "assignment_77_export/submission_501/attention-scores.ipynb": notebook("ada"),
    "assignment_77_export/submission_502/attention-scores.ipynb": notebook("grace and zoë"),
}
GITHUB = {
    "attention-scores-submissions/attention-scores-ada-l/attention-scores.ipynb": notebook("ada"),
    "attention-scores-submissions/attention-scores-ada-l/README.md": b"read",
    "attention-scores-submissions/attention-scores-ada-l/.git/config": b"[core]",
    "attention-scores-submissions/attention-scores-ghopper/attention-scores.ipynb": notebook(
        "grace"
    ),
    "attention-scores-submissions/attention-scores-ghopper/old/attention-scores.ipynb": notebook(
        "old"
    ),
}
GITHUB_GRADES = (
    "assignment_name,assignment_url,starter_code_url,github_username,roster_identifier,"
    "student_repository_name,student_repository_url,submission_timestamp,points_awarded,"
    "points_available\n"
    "Attention scores,https://example.org/a,,ada-l,s01,attention-scores-ada-l,https://example.org/1,"
    "2029-12-30 07:13:47 UTC,0,23\n"
    "Attention scores,https://example.org/a,,ghopper,s02,attention-scores-ghopper,https://example.org/2,"
    "2029-12-31 08:00:00 UTC,5,23\n"
)
EXPORTS = {"canvas": CANVAS, "moodle": MOODLE, "gradescope": GRADESCOPE, "github": GITHUB}
