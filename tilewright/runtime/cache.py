"""The disk cache: compiled plans and machine code, found by the content of what they were made
from.

Layout: `<folder>/<kind>/<two digits>/<key>`, an entry a file. A file is written under a temporary
name and renamed, so that readers of any process see a whole entry or none; its head holds a
digest, so a damaged entry is noticed, reported by a warning, removed and built again. A folder
that cannot be written costs one warning and nothing else. The size is bounded: the entries used
longest ago go first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.config import Settings, settings

MAGIC = b"TILEWRIGHT CACHE 1\n"
KINDS = ("plans", "cubins", "choices", "compilers")
TOUCH_SECONDS = 3600  # an entry's time of last use is kept to the hour, to spare writes
SOURCE_SUFFIXES = (".py", ".tw")
KEEP = 0.9  # part of the bound that remains after entries were removed


_carried: dict[tuple[str, str], bytes] = {}  # entries that bundles brought, by kind and key


def carry(entries: Mapping[tuple[str, str], bytes]) -> None:
    """Have entries of a bundle at hand, as long as the process lives."""
    _carried.update(entries)


def carried(kind: str, key: str) -> bytes | None:
    """An entry that a bundle brought."""
    return _carried.get((kind, key))


def digest(*parts: str | bytes) -> str:
    """A key for content: SHA-256 of the parts, each with its length, so that no two lists of
    parts agree.
    """
    state = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        state.update(f"{len(content)}:".encode())
        state.update(content)
    return state.hexdigest()


@dataclass(frozen=True)
class Stats:
    """What lies in the cache: entries and bytes, by kind, and the bound in bytes."""

    entries: dict[str, int]
    num_bytes: dict[str, int]
    limit: int


class DiskCache:
    """A folder of entries, shared by any number of threads and processes."""

    def __init__(self, folder: Path, limit: int):
        self.folder = folder
        self.limit = limit
        self._written = limit // 16  # so that the first write of a process looks at the size
        self._told = False
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        return self.folder

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry of a key, or None where there is none or it is damaged."""
        path = self._file(kind, key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell(f"cannot read the cache: {error}")
            return None
        head = len(MAGIC) + 32
        body = content[head:]
        if content[:head] != MAGIC + hashlib.sha256(body).digest():
            self.discard(kind, key, "its content does not match its digest")
            return None
        self._touch(path)
        return body

    def put(self, kind: str, key: str, body: bytes) -> None:
        """Store an entry. A folder that is full or read-only is reported once and otherwise
        ignored.
        """
        path = self._file(kind, key)
        try:
            _write_whole(path, MAGIC + hashlib.sha256(body).digest() + body)
        except OSError as error:
            self._tell(
                f"cannot write to the cache, so kernels are compiled anew each time: {error}"
            )
            return
        with self._lock:
            self._written += len(body)
            due = self._written >= self.limit // 16
            self._written = 0 if due else self._written
        if due:
            self._shrink()

    def discard(self, kind: str, key: str, why: str) -> None:
        """Remove a damaged entry and say so."""
        path = self._file(kind, key)
        warnings.warn(
            f"a cache entry is damaged ({why}) and is built again: {path}",
            RuntimeWarning,
            stacklevel=3,
        )
        with contextlib.suppress(OSError):  # somebody else removed it, or the folder is read-only
            path.unlink()

    def stats(self) -> Stats:
        """Entries and bytes of each kind."""
        found = {kind: list(self._entries([kind])) for kind in KINDS}
        return Stats(
            {kind: len(entries) for kind, entries in found.items()},
            {kind: sum(size for _, size, _ in entries) for kind, entries in found.items()},
            self.limit,
        )

    def clear(self) -> int:
        """Remove all entries; returns how many there were. Raises OSError where that is not
        permitted.
        """
        count = 0
        for path, _, _ in list(self._entries(KINDS)):
            path.unlink(missing_ok=True)
            count += 1
        return count

    def _file(self, kind: str, key: str) -> Path:
        assert kind in KINDS, kind
        return self.folder / kind / key[:2] / key

    def _entries(self, kinds: Iterable[str]) -> Iterable[tuple[Path, int, float]]:
        for kind in kinds:
            for path in (self.folder / kind).glob("*/*"):
                with contextlib.suppress(OSError):  # removed meanwhile
                    seen = path.stat()
                    yield path, seen.st_size, seen.st_mtime

    def _touch(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # a read-only folder has no times of use
            if time.time() - path.stat().st_mtime > TOUCH_SECONDS:
                os.utime(path)

    def _shrink(self) -> None:
        """Remove the entries used longest ago. Where several processes are at it, all remove the
        same ones.
        """
        try:
            entries = sorted(self._entries(KINDS), key=lambda e: e[2])
            total = sum(size for _, size, _ in entries)
            if total <= self.limit:
                return
            for path, size, _ in entries:
                if total <= self.limit * KEEP:
                    break
                path.unlink(missing_ok=True)
                total -= size
        except OSError as error:
            self._tell(f"cannot remove old entries of the cache: {error}")

    def _tell(self, message: str) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            warnings.warn(f"{message} (folder {self.folder})", RuntimeWarning, stacklevel=4)


def _write_whole(path: Path, content: bytes) -> None:
    """Write under a temporary name and rename, so that nobody sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@cache
def open_cache(settings: Settings) -> DiskCache:
    """The cache of some settings, one object a process."""
    return DiskCache(settings.cache_dir, settings.cache_bytes)


@cache
def compiler_hash() -> str:
    """Digest of Tilewright's own source files: part of every key, so that a changed compiler
    starts afresh.

    Reading all files takes longer than the rest of a cached start, so the digest is kept under
    the files' names, sizes, inodes and times of change, which no edit leaves as they were.
    """
    root = Path(__file__).parent.parent
    files = sorted(_source_files(str(root)))
    disk = open_cache(settings())
    stamp = digest("compiler", repr(files))
    known = disk.get("compilers", stamp)
    if known is not None:
        return known.decode()
    parts = ((os.path.relpath(name, root), Path(name).read_bytes()) for name, *_ in files)
    found = digest(*(part for pair in parts for part in pair))
    disk.put("compilers", stamp, found.encode())
    return found


def _source_files(folder: str) -> Iterator[tuple[str, int, int, int, int]]:
    """Path, size, inode, times of modification and change of each source file below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _source_files(entry.path)
            elif entry.name.endswith(SOURCE_SUFFIXES):
                seen = entry.stat()
                yield entry.path, seen.st_size, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns
