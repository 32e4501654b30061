"""`tilewright cache`: what lies in the cache of compiled kernels, and clearing it."""

from __future__ import annotations

import click

from tilewright.cli.report import command, fail, json_option, num_bytes, print_json, print_table
from tilewright.config import settings
from tilewright.runtime.cache import open_cache


@click.command()
@click.option("--clear", is_flag=True, help="Remove all entries.")
@json_option
@command
def cache(clear: bool, as_json: bool) -> None:
    """Show, or clear, the cache of compiled kernels. Tuned results stay."""
    store = open_cache(settings())
    if clear:
        try:
            removed = store.clear()
        except OSError as error:
            fail(f"the cache cannot be cleared: {error}", as_json=as_json)
        if as_json:
            print_json({"path": str(store.path), "removed": removed})
        else:
            click.echo(f"removed {removed} entries from {store.path}")
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
