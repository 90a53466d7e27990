"""A downloaded export, zip or folder: only plain files, under names that stay inside.

Whoever handed something in chose the names and bytes in it. Nothing is unpacked as a whole: files
are looked at one by one, and what is refused is told in one sentence each.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from autograder.assignment import ClassroomError
from autograder.collect import CHECKPOINTS
from autograder.collect import shown as _shown

MAX_ENTRIES = 50_000
MAX_FILE = 100 << 20
MAX_TOTAL = 4 << 30
MAX_RATIO = 200  # deflate itself ends at about 1,030; a notebook reaches 20
FREE_OF_RATIO = 1 << 20  # small files harm nobody, whatever they are packed from
JUNK = ("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini", ".git", CHECKPOINTS)
# Control characters, and those that turn the direction of text on a terminal or a page.
UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
# A name that is safe to print; a path may be longer than a file's name.
shown = functools.partial(_shown, limit=120)
READING = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


@dataclass(frozen=True)
class Entry:
    """One file of an export."""

    path: PurePosixPath
    size: int
    open: Callable[[], IO[bytes]]

    @property
    def name(self) -> str:
        return self.path.name

    def read(self) -> bytes:
        """The bytes; raises one of READING."""
        with self.open() as file:
            return file.read(MAX_FILE + 1)

    def write(self, target: Path) -> None:
        """Copy to `target`, which must not exist; raises one of READING, and leaves nothing."""
        with self.open() as source, target.open("xb") as out:
            try:
                shutil.copyfileobj(source, out, 1 << 20)
            except READING:
                target.unlink()
                raise


class Archive:
    """What an export holds.

    Attributes:
        name: the export's own name, without `.zip`.
        entries: the files that can be read, in the order of their names.
        refused: one sentence for each that is not taken.

    Raises:
        ClassroomError: there is no export, or nothing of it can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.removesuffix(".zip") if path.is_file() else path.resolve().name
        self.entries: list[Entry] = []
        self.refused: list[str] = []
        self._zip: zipfile.ZipFile | None = None
        if path.is_dir():
            self._folder()
        elif path.is_file():
            self._zipped()
        else:
            raise ClassroomError(f"There is no export at {path}; name the zip or folder.")
        self.entries.sort(key=lambda entry: entry.path)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        if self._zip is not None:
            self._zip.close()

    def _zipped(self) -> None:
        try:
            self._zip = zipfile.ZipFile(self.path)
        except READING as error:
            raise ClassroomError(
                f"{self.path} is no zip that can be read ({error}); download the export again."
            ) from error
        infos = self._zip.infolist()
        if len(infos) > MAX_ENTRIES:
            self._zip.close()
            raise ClassroomError(
                f"{self.path} holds {len(infos)} files, more than {MAX_ENTRIES}; "
                "export a smaller part of the class at a time."
            )
        total = 0
        seen: set[PurePosixPath] = set()
        for info in infos:
            raw = _decoded(info)
            if info.is_dir() or _is_junk(raw):
                continue
            path = safe_path(raw)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if isinstance(path, str):
                self._refuse(raw, path)
            elif kind not in (0, stat.S_IFREG):
                self._refuse(raw, "it is a link or a device, not a file")
            elif path in seen:
                self._refuse(raw, "another file of that name came first in the zip")
            elif info.flag_bits & 0x1:
                self._refuse(raw, "it is encrypted")
            elif info.file_size > MAX_FILE:
                self._refuse(raw, f"it would unpack to {info.file_size >> 20} MiB")
            elif info.file_size > max(FREE_OF_RATIO, MAX_RATIO * info.compress_size):
                self._refuse(raw, "it is packed more densely than honest work ever is")
            elif total + info.file_size > MAX_TOTAL:
                self._refuse(raw, f"all files together unpack to more than {MAX_TOTAL >> 30} GiB")
            else:
                total += info.file_size
                seen.add(path)
                self.entries.append(Entry(path, info.file_size, self._opener(info)))

    def _opener(self, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
        assert self._zip is not None
        opened = self._zip
        return lambda: opened.open(info)

    def _folder(self) -> None:
        count = total = 0
        for root, folders, files in os.walk(self.path):
            for name in list(folders):
                if _is_junk(name) or Path(root, name).is_symlink():
                    folders.remove(name)
                    if not _is_junk(name):
                        self._refuse(self._inside(root, name), "it is a link to another place")
            for name in files:
                count += 1
                if count > MAX_ENTRIES:
                    raise ClassroomError(
                        f"{self.path} holds more than {MAX_ENTRIES} files; name the folder of "
                        "the export itself."
                    )
                if _is_junk(name):
                    continue
                raw = self._inside(root, name)
                path, file = safe_path(raw), Path(root, name)
                try:
                    state = file.lstat()
                except OSError as error:
                    self._refuse(raw, f"it cannot be opened ({error.strerror})")
                    continue
                if isinstance(path, str):
                    self._refuse(raw, path)
                elif not stat.S_ISREG(state.st_mode):
                    self._refuse(raw, "it is a link or a device, not a file")
                elif state.st_size > MAX_FILE:
                    self._refuse(raw, f"it is {state.st_size >> 20} MiB long")
                elif total + state.st_size > MAX_TOTAL:
                    self._refuse(raw, f"all files together are more than {MAX_TOTAL >> 30} GiB")
                else:
                    total += state.st_size
                    self.entries.append(Entry(path, state.st_size, _plain_opener(file)))

    def _inside(self, root: str, name: str) -> str:
        return Path(root, name).relative_to(self.path).as_posix()

    def _refuse(self, name: str, reason: str) -> None:
        self.refused.append(f"{shown(name)} was not taken: {reason}.")


def _plain_opener(file: Path) -> Callable[[], IO[bytes]]:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)
    return lambda: os.fdopen(os.open(file, flags), "rb")


def _decoded(info: zipfile.ZipInfo) -> str:
    """The name; many tools write UTF-8 without saying so, and zipfile then reads code page 437."""
    name = info.orig_filename.replace("\\", "/")
    if not info.flag_bits & 0x800:
        try:
            return name.encode("cp437").decode("utf-8")
        except UnicodeError:
            pass
    return name


def _is_junk(name: str) -> bool:
    parts = name.split("/")
    return any(part in JUNK for part in parts) or parts[-1].startswith("._")


def safe_path(name: str) -> PurePosixPath | str:
    """The path below the export, or why there can be none."""
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        return "its name is an absolute path"
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        return "its name leads out of the export"
    if UNSHOWN.search(name):
        return "its name has control characters"
    try:
        longest = max((len(part.encode("utf-8")) for part in parts), default=0)
    except UnicodeEncodeError:
        return "its name is in an unknown encoding"
    if not parts:
        return "it has no name"
    if longest > 240 or len(parts) > 40:
        return "its name is too long"
    return PurePosixPath(*parts)
