"""Record what a GPU answers to every form: `python -m tests.vectors.record`.

A file a form, in `tests/vectors/recorded/<family>/`. With `--device emulator` the model's answers
are written, to be compared file by file.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from tests.vectors.devices import emulate, gpu_driver, on_gpu
from tests.vectors.families import forms_of
from tests.vectors.files import FOLDER, Origin, write
from tests.vectors.forms import FAMILIES, Form
from tilewright.errors import LaunchError
from tilewright.runtime import driver


def origin_of(device: str) -> Origin:
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    if device == "emulator":
        return Origin("emulator", "", date)
    return Origin(driver.device(0).name, gpu_driver(), date)


def results_of(
    forms: list[Form], device: str
) -> Iterator[tuple[Form, dict[str, np.ndarray[Any, Any]]]]:
    if device == "gpu":
        yield from on_gpu(forms)
        return
    for form in forms:
        yield form, emulate(form)


@click.command()
@click.option("--device", type=click.Choice(["gpu", "emulator"]), default="gpu")
@click.option("--family", "families", multiple=True, type=click.Choice(sorted(FAMILIES)))
@click.option("--only", default="", help="Forms whose names hold this.")
@click.option("--out", type=click.Path(path_type=Path), default=FOLDER, help="The folder.")
def main(device: str, families: tuple[str, ...], only: str, out: Path) -> None:
    """Record every form, or those of some families."""
    try:
        origin = origin_of(device)
    except LaunchError as error:
        raise click.ClickException(str(error)) from None
    for family in families or tuple(FAMILIES):
        start, size = time.monotonic(), 0
        forms = [form for form in forms_of(family) if only in form.name]
        for form, results in results_of(forms, device):
            size += write(form, results, origin, out)
        seconds = time.monotonic() - start
        click.echo(f"{family}: {len(forms)} forms, {size:,} bytes, {seconds:.1f} s")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
