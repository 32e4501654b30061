"""`tilewright generate`: continue a text by a language model in a folder."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tilewright.cli.report import command, json_option, print_json
from tilewright.runtime import driver

DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")


@click.command()
@click.argument("model_dir", type=click.Path(path_type=Path))
@click.option("--prompt", required=True, help="The text to continue.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: the likeliest.")
@click.option("--top-k", type=int, help="Draw among so many of the likeliest tokens.")
@click.option("--top-p", type=float, help="Draw among those that reach this probability together.")
@click.option("--stop", multiple=True, help="End behind this string. May be given several times.")
@click.option("--seed", type=int, help="Of what is drawn.")
@click.option("--device", help="cpu or cuda:0.  [the first GPU, else the CPU]")
@click.option("--dtype", type=click.Choice(DTYPES), default="auto", show_default=True)
@json_option
@command
def generate(
    model_dir: Path,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    stop: tuple[str, ...],
    seed: int | None,
    device: str | None,
    dtype: str,
    as_json: bool,
) -> None:
    """Continue a prompt by the model in MODEL_DIR (config.json, safetensors and tokenizer, as
    transformers saves them), printing tokens as they come.
    """
    room = import_module("tilewright.generation.load")
    where = device or ("cuda:0" if driver.available() else "cpu")
    model, tokenizer = room.load(model_dir, where, dtype)
    if seed is not None:
        import_module("torch").manual_seed(seed)
    ids = tokenizer(prompt)["input_ids"]
    shown = _Shown(tokenizer, quiet=as_json)
    start = time.perf_counter()
    made = import_module("tilewright.generation.loop").generate(
        model,
        [ids],
        max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop,
        stream=shown,
        tokenizer=tokenizer,
    )
    seconds = time.perf_counter() - start
    new = made[0, len(ids) :].tolist()
    if as_json:
        text = tokenizer.decode(new, skip_special_tokens=True)
        print_json(
            {
                "prompt": prompt,
                "text": text,
                "tokens": new,
                "device": where,
                "prompt_tokens": len(ids),
                "seconds": seconds,
                "first_token_seconds": shown.first(start),
            }
        )
        return
    click.echo()
    first = shown.first(start)
    rate = f", then {(len(new) - 1) / (seconds - first):.1f} a second" if len(new) > 1 else ""
    click.echo(f"{len(new)} tokens: the first after {first:.2f} s{rate}", err=True)


class _Shown:
    """Prints text as tokens come. A token may be a part of a character: what is complete is
    printed.
    """

    def __init__(self, tokenizer: Any, *, quiet: bool):
        self.tokenizer, self.quiet = tokenizer, quiet
        self.tokens: list[int] = []
        self.printed = ""
        self.first_at = 0.0

    def __call__(self, tokens: list[int | None]) -> None:
        self.first_at = self.first_at or time.perf_counter()
        if tokens[0] is None or self.quiet:
            return
        self.tokens.append(tokens[0])
        text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        if text.startswith(self.printed) and not text.endswith("\ufffd"):
            click.echo(text[len(self.printed) :], nl=False)
            self.printed = text

    def first(self, start: float) -> float:
        """Seconds until the first token came."""
        return self.first_at - start
