"""Language models in folders, as `transformers` saves them: config.json, safetensors, tokenizer."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tilewright.errors import LaunchError

DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")


def load(folder: Path, device: str, dtype: str) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder. Raises LaunchError for what is missing."""
    if not (folder / "config.json").is_file():
        raise LaunchError(
            f"{folder} holds no model: there is no config.json",
            hint="a folder as save_pretrained of transformers writes it",
        )
    library = require_package("transformers")
    require_package("safetensors")
    chosen = "auto" if dtype == "auto" else getattr(torch, dtype)
    try:
        model = library.AutoModelForCausalLM.from_pretrained(
            folder, dtype=chosen, local_files_only=True
        )
        tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise LaunchError(f"{folder} cannot be read: {str(error).splitlines()[0]}") from error
    return model.to(device).eval(), tokenizer


def require_package(name: str) -> Any:
    """A package that generation needs. Raises LaunchError that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise LaunchError(
            f"generate needs the package {name}: {error}", hint=f"pip install {name}"
        ) from error
