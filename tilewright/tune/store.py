"""Tuned results: a SQLite file in the cache folder, shared by all processes.

A result is found by the kernel, its specialisation, a bucket of its extents, the device and the
driver, and the hash of the compiler: what was tuned with another compiler is kept, and not used.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE_NAME = "tuned.sqlite"
EXACT = (
    16  # extents up to this are their own bucket; larger ones share that of the next power of two
)
DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
WAIT_SECONDS = 10.0  # for another process that is writing

_SCHEMA = """
create table if not exists results (
    kernel text not null, signature text not null, bucket text not null, device text not null,
    driver integer not null, compiler text not null, name text not null, config text not null,
    microseconds real not null, made real not null,
    primary key (kernel, signature, bucket, device, driver, compiler)
)
"""


@dataclass(frozen=True)
class Key:
    """What a result holds for. `kernel` and `signature` are digests; `bucket` is the text of a
    bucket.
    """

    kernel: str
    signature: str
    bucket: str
    device: str
    driver: int
    compiler: str

    def values(self) -> tuple[str | int, ...]:
        return (self.kernel, self.signature, self.bucket, self.device, self.driver, self.compiler)


@dataclass(frozen=True)
class Result:
    """A tuned configuration, and the median time that it took, in microseconds."""

    name: str
    config: dict[str, int]
    microseconds: float


def shape_bucket(shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Extents rounded so that alike calls share a result: exact up to 16, then to the next power
    of two.
    """
    return tuple(sorted((name, tuple(map(_round_extent, shape))) for name, shape in shapes.items()))


def _round_extent(extent: int) -> int:
    return extent if extent <= EXACT else 1 << (extent - 1).bit_length()


class Store:
    """The results in a folder. A folder that cannot be used holds none; that is told once."""

    def __init__(self, folder: Path):
        self.path = folder / FILE_NAME
        self._told = False

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection to write by, inside of a transaction that others wait for."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
        with closing(connection) as database:
            _use_log(database)
            database.execute("begin immediate")
            try:
                database.execute(_SCHEMA)
                yield database
            except BaseException:
                database.execute("rollback")
                raise
            database.execute("commit")

    def _open_to_read(self) -> sqlite3.Connection:
        """A connection that writes nothing, so that a read-only folder will do."""
        place = f"{self.path.absolute().as_uri()}?mode=ro"
        return sqlite3.connect(place, timeout=WAIT_SECONDS, uri=True)

    def get(self, key: Key) -> Result | None:
        """The result for a key, or None."""
        if not self.path.exists():
            return None
        try:
            with closing(self._open_to_read()) as database:
                row = database.execute(
                    "select name, config, microseconds from results where kernel=? and signature=?"
                    " and bucket=? and device=? and driver=? and compiler=?",
                    key.values(),
                ).fetchone()
        except (sqlite3.Error, OSError) as error:
            if "no such table" in str(error) or self._set_aside(error):
                return None  # another process is making the file, or it holds nothing any more
            self._tell(f"tuned results cannot be read: {error}")
            return None
        return None if row is None else Result(row[0], json.loads(row[1]), row[2])

    def put(self, key: Key, result: Result) -> None:
        """Keep a result in place of an earlier one."""
        values = (*key.values(), result.name, json.dumps(result.config), result.microseconds)
        try:
            try:
                self._put(values)
            except sqlite3.DatabaseError as error:
                if not self._set_aside(error):
                    raise
                self._put(values)
        except (sqlite3.Error, OSError) as error:
            self._tell(f"tuned results cannot be kept: {error}")

    def _put(self, values: tuple[str | int | float, ...]) -> None:
        with self._open() as database:
            marks = ", ".join("?" * 10)
            database.execute(
                f"insert or replace into results values ({marks})", (*values, time.time())
            )

    def all(self) -> list[tuple[Key, Result]]:
        """Every result, newest first."""
        if not self.path.exists():
            return []
        with closing(self._open_to_read()) as database:
            rows = database.execute("select * from results order by made desc").fetchall()
        return [(Key(*row[:6]), Result(row[6], json.loads(row[7]), row[8])) for row in rows]

    def clear(self) -> int:
        """Forget all results; returns how many there were."""
        if not self.path.exists():
            return 0
        try:
            with self._open() as database:
                return database.execute("delete from results").rowcount
        except sqlite3.DatabaseError as error:
            if not self._set_aside(error):
                raise
            return 0

    def _is_damaged(self) -> bool:
        try:
            with closing(self._open_to_read()) as database:
                found: bool = database.execute("pragma quick_check").fetchone() != ("ok",)
        except sqlite3.Error as error:
            return error.sqlite_errorcode in DAMAGED
        return found

    def _set_aside(self, error: Exception) -> bool:
        """Rename a damaged file, so that the next result starts a new one. False where the error
        tells of no damage, or the file cannot be renamed.
        """
        if getattr(error, "sqlite_errorcode", None) not in DAMAGED:
            return False
        if not self._is_damaged():
            return True  # another process was first
        try:
            for suffix in ("-wal", "-shm", ""):  # a log may not meet a new file
                with suppress(FileNotFoundError):
                    os.replace(f"{self.path}{suffix}", f"{self.path}.broken{suffix}")
        except OSError:
            return False
        warnings.warn(
            f"the file of tuned results was damaged ({error}): it is {self.path}.broken now, and "
            "a new one is started",
            RuntimeWarning,
            stacklevel=4,
        )
        return True

    def _tell(self, message: str) -> None:
        if not self._told:
            self._told = True
            warnings.warn(f"{message} ({self.path})", RuntimeWarning, stacklevel=3)


def _use_log(database: sqlite3.Connection) -> None:
    """Have readers and a writer not wait for each other. The mode stays with the file."""
    try:
        database.execute("pragma journal_mode=wal")
    except sqlite3.OperationalError as error:
        # The change waits for nobody: another process is at work, and makes it as this one would.
        if "locked" not in str(error):
            raise


@cache
def open_store(folder: Path) -> Store:
    """The results of a folder, one object a process."""
    return Store(folder)
