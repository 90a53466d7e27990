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

from autograder.common.errors import ClassroomError
from autograder.grading.collect import CHECKPOINTS
from autograder.grading.collect import shown as _shown

MAX_ENTRIES = 50_000
MAX_FILE = 100 << 20
MAX_TOTAL = 4 << 30
MAX_NAME = 1000  # characters of a path in which is looked for what it tells
MAX_RATIO = 200  # deflate itself ends at about 1,030; a notebook reaches 20
FREE_OF_RATIO = 1 << 20  # small files harm nobody, whatever they are packed from
JUNK = ("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini", ".git", CHECKPOINTS)
# Control characters, and those that turn the direction of text on a terminal or a page.
UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
# A name that is safe to print; a path may be longer than a file's name.
shown = functools.partial(_shown, limit=120)
NO_FILE = "it is a link or a device, not a file"
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

    def told(self, pattern: str) -> dict[str, str] | None:
        """What a tool tells in the path, by the pattern's groups; None if it is none of its."""
        text = str(self.path)
        found = re.match(pattern, text) if len(text) <= MAX_NAME else None
        return found.groupdict() if found else None

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
        self._paths: set[PurePosixPath] = set()
        self._total = 0
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
        for info in infos:
            name = _decoded(info)
            if info.is_dir() or _is_junk(name):
                continue
            refusal = ""
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
                refusal = NO_FILE
            elif info.flag_bits & 0x1:
                refusal = "it is encrypted"
            elif info.file_size > MAX_FILE:
                refusal = f"it would unpack to {info.file_size >> 20} MiB"
            elif info.file_size > max(FREE_OF_RATIO, MAX_RATIO * info.compress_size):
                refusal = "it is packed more densely than honest work ever is"
            self._take(name, info.file_size, functools.partial(self._zip.open, info), refusal)

    def _folder(self) -> None:
        count = 0
        for root, folders, files in os.walk(self.path):
            files += [name for name in folders if Path(root, name).is_symlink()]
            folders[:] = [name for name in folders if not _is_junk(name)]
            for name in files:
                count += 1
                if count > MAX_ENTRIES:
                    raise ClassroomError(
                        f"{self.path} holds more than {MAX_ENTRIES} files; name the folder of "
                        "the export itself."
                    )
                if _is_junk(name):
                    continue
                file, size, refusal = Path(root, name), 0, ""
                try:
                    state = file.lstat()
                    size = state.st_size
                    if not stat.S_ISREG(state.st_mode):
                        refusal = NO_FILE
                    elif size > MAX_FILE:
                        refusal = f"it is {size >> 20} MiB long"
                except OSError as error:
                    refusal = f"it cannot be opened ({error.strerror})"
                inside = file.relative_to(self.path).as_posix()
                self._take(inside, size, functools.partial(_open_plain, file), refusal)

    def _take(
        self, name: str, size: int, opener: Callable[[], IO[bytes]], refusal: str = ""
    ) -> None:
        """Take one file over, unless its name, its size or the `refusal` speaks against it."""
        path = safe_path(name)
        if isinstance(path, str):
            refusal = path
        elif path in self._paths:
            refusal = refusal or "another file of that name came first in the zip"
        elif self._total + size > MAX_TOTAL:
            refusal = refusal or f"all files together are more than {MAX_TOTAL >> 30} GiB"
        if refusal or isinstance(path, str):
            self.refused.append(f"{shown(name)} was not taken: {refusal}.")
            return
        self._total += size
        self._paths.add(path)
        self.entries.append(Entry(path, size, opener))


def _open_plain(file: Path) -> IO[bytes]:
    return os.fdopen(os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb")


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
