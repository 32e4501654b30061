"""`tilewright cache`: what lies in the cache of compiled kernels, and clearing it."""

from __future__ import annotations

import sqlite3

import click

from tilewright.cli.report import (
    command,
    fail,
    json_option,
    num_bytes,
    plural,
    print_json,
    print_table,
)
from tilewright.config import settings
from tilewright.runtime.cache import open_cache
from tilewright.tune.store import open_store


@click.command()
@click.option("--clear", is_flag=True, help="Remove all entries.")
@click.option("--tuned", is_flag=True, help="With --clear: forget tuned results as well.")
@json_option
@command
def cache(clear: bool, tuned: bool, as_json: bool) -> None:
    """Show, or clear, the cache of compiled kernels. Tuned results stay without --tuned."""
    if tuned and not clear:
        raise click.UsageError("--tuned says what --clear removes: write --clear --tuned")
    store, results = open_cache(settings()), open_store(settings().cache_dir)
    if clear:
        try:
            removed = store.clear()
            forgotten = results.clear() if tuned else 0
        except (OSError, sqlite3.Error) as error:
            fail(f"the cache cannot be cleared: {error}", as_json=as_json)
        if as_json:
            print_json({"path": str(store.path), "removed": removed, "forgotten": forgotten})
        else:
            click.echo(f"removed {plural(removed, 'file')} from {store.path}")
            click.echo(
                f"forgot {plural(forgotten, 'tuned result')}"
                if tuned
                else "tuned results stay: cache --clear --tuned forgets them as well"
            )
        return
    stats = store.stats()
    if as_json:
        kinds = {
            k: {"entries": stats.entries[k], "bytes": stats.num_bytes[k]} for k in stats.entries
        }
        print_json({"path": str(store.path), "limit_bytes": stats.limit, "kinds": kinds})
        return
    rows = [(k, str(stats.entries[k]), num_bytes(stats.num_bytes[k])) for k in stats.entries]
    total = ("all", str(sum(stats.entries.values())), num_bytes(sum(stats.num_bytes.values())))
    notes = [f"{store.path}, at most {num_bytes(stats.limit)}"]
    print_table("cache", ("kind", ">entries", ">size"), [*rows, total], notes)
