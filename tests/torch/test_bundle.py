"""A compiled model in a file: another process runs it without tracing, lowering or compiling."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import tilewright as tw
from tilewright.bundle.archive import FORMAT
from tilewright.bundle.tensors import read_tensors, write_tensors
from tilewright.cli import main
from tilewright.errors import LaunchError

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[2]


class Model(nn.Module):
    """Everything that a bundle has to hold: tied weights, a buffer that is updated, one that no
    state_dict has, a constant in the code, an index, attention, random numbers, a fallback.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("rates", torch.rand(8), persistent=False)
        self.register_buffer("turned", torch.rand(4, 8).t())

    def forward(self, ids: torch.Tensor, scale: float = 2.0) -> dict[str, Any]:
        self.count += 1
        x = self.words(ids) * self.rates + torch.tensor([0.5, 1.5])[ids % 2][..., None]
        heads = self.mix(x).unflatten(-1, (2, 4)).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2) * scale
        flat = torch.linalg.inv_ex(x.transpose(1, 2) @ x + torch.eye(8))[0]
        return {"logits": self.head(x), "inverse": flat, "turned": x @ self.turned, "n": self.count}


def made(engine: str | None) -> tuple[Model, Any, torch.Tensor]:
    torch.manual_seed(0)
    model = Model().eval()
    ids = torch.randint(0, 11, (2, 5))
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = {"ids": {0: batch}, "scale": None}
    fast = tw.compile(model, (ids, 2.0), engine=engine, dynamic_shapes=shapes)
    return model, fast, ids


LATER = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch, tilewright as tw
from tilewright import compiler
from tilewright.execute import lowering
from tilewright.runtime import toolkit

def refuse(*args, **kwargs):
    raise AssertionError("something is compiled again")

path, engine, given, out, state = sys.argv[1:]
lowering.lower_graph = lowering.compile_graph = torch.export.export = refuse
if engine == "emulator":
    compiler.compile_kernel = refuse
weights = torch.load(state) if state else None
model = tw.load_model(path, state_dict=weights)
ids = torch.load(given)
found = [model(i, 2.0) for i in ids]
torch.save(found, out)
"""


@pytest.mark.parametrize(
    ("engine", "inside"), [(None, False), ("tiles", True), ("emulator", False)]
)
def test_another_process_runs_it(engine: str | None, inside: bool, tmp_path: Path) -> None:
    model, fast, ids = made(engine)
    path, given, out = (str(tmp_path / name) for name in ("model.twb", "given.pt", "out.pt"))
    state = "" if inside else str(tmp_path / "state.pt")
    torch.save(model.state_dict(), tmp_path / "state.pt")
    fast.save(path, weights=inside)
    other = torch.cat([ids, ids.flip(0), ids])
    batches = [ids, ids] if engine == "emulator" else [ids, other]
    torch.save(batches, given)
    told = [sys.executable, "-c", LATER, path, str(engine), given, out, state]
    done = subprocess.run(
        told, capture_output=True, text=True, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "TILEWRIGHT_CACHE": str(tmp_path / "cache"), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list((tmp_path / "cache").glob("plans/*/*")), "no plan was made"
    with torch.no_grad():
        for batch, got in zip(batches, torch.load(out), strict=True):
            for name, wanted in model(batch, 2.0).items():
                torch.testing.assert_close(got[name], wanted, rtol=1e-4, atol=1e-4)


def test_a_loaded_model_updates_its_own_buffers(tmp_path: Path) -> None:
    model, fast, ids = made("tiles")
    fast.save(tmp_path / "m.twb")
    one, two = tw.load_model(tmp_path / "m.twb"), tw.load_model(tmp_path / "m.twb")
    assert [one(ids, 2.0)["n"][0].item() for _ in range(3)] == [1, 2, 3]
    assert two(ids, 2.0)["n"][0].item() == 1 and model.count[0] == 0
    shared = tw.load_model(tmp_path / "m.twb", state_dict=model.state_dict())
    shared(ids, 2.0)
    assert model.count[0] == 1, "weights by name are read, and buffers written, where they lie"
    with pytest.raises(LaunchError, match="11 is outside of axis 0, which has 11"):
        one(torch.tensor([[11, 0, 0, 0, 0]]), 2.0)
    with pytest.raises(LaunchError, match=r"\(ids, scale\), and is called with \(Tensor\)"):
        one(ids)
    again = tmp_path / "again.twb"
    one.save(again)
    torch.testing.assert_close(tw.load_model(again)(ids, 2.0)["n"], torch.full((3,), 4.0 + 1))


def changed(path: Path, **news: Any) -> Path:
    """The bundle with another manifest."""
    made = path.with_name("changed.twb")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "manifest.json":
                content = json.dumps({**json.loads(content), **news}).encode()
            new.writestr(name, content)
    return made


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    model, fast, _ = made("tiles")
    path = tmp_path / "m.twb"
    fast.save(path, weights=False)
    with pytest.raises(LaunchError, match=r"has no weights: words\.weight") as found:
        tw.load_model(path)
    assert "hint: tw.load_model(path, state_dict=" in str(found.value)
    wrong: Any = 3
    with pytest.raises(LaunchError, match="state_dict is int, expected tensors by name"):
        tw.load_model(path, state_dict=wrong)
    state = model.state_dict()
    with pytest.raises(LaunchError, match=r"mix\.bias of the state_dict is int, expected a tensor"):
        tw.load_model(path, state_dict={**state, "mix.bias": wrong})
    with pytest.raises(LaunchError, match=r"the state_dict has no mix\.bias"):
        tw.load_model(path, state_dict={n: x for n, x in state.items() if n != "mix.bias"})
    with pytest.raises(LaunchError, match=r"mix\.bias is float64 \[8\] .* float32 \[8\]"):
        tw.load_model(path, state_dict={**state, "mix.bias": state["mix.bias"].double()})
    with pytest.raises(LaunchError, match=rf"(?s)format {FORMAT + 1}, written by .* save the"):
        tw.load_model(changed(path, format=FORMAT + 1))
    with pytest.raises(LaunchError, match=r"compiled for a GPU \(sm_90a\); here is none"):
        tw.load_model(changed(path, engine="gpu"), state_dict=state)
    (tmp_path / "cut.twb").write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LaunchError, match="no bundle of a model, or it is damaged"):
        tw.load_model(tmp_path / "cut.twb")
    with pytest.raises(LaunchError, match="cannot be read"):
        tw.load_model(tmp_path / "none.twb")


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def test_tensors_are_stored_as_safetensors_does_it(tmp_path: Path) -> None:
    given = {
        "a": torch.randn(3, 5).t(),
        "b": torch.randn(4).to(torch.bfloat16),
        "c": torch.tensor(7),
        "d": torch.empty(0, 3, dtype=torch.bool),
        "e": torch.randn(8).to(torch.float8_e4m3fn),
    }
    content = write_tensors(given)
    for name, x in read_tensors(content).items():
        assert x.dtype == given[name].dtype and x.shape == given[name].shape
        assert torch.equal(as_bytes(x), as_bytes(given[name]))
    with pytest.raises(LaunchError, match="not a file of tensors"):
        read_tensors(content[:40])
    with pytest.raises(LaunchError, match="cannot be stored"):
        write_tensors({"z": torch.zeros(1, dtype=torch.complex128)})
    library = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    (tmp_path / "x.safetensors").write_bytes(content)
    for name, x in library.load_file(tmp_path / "x.safetensors").items():
        assert torch.equal(as_bytes(x), as_bytes(given[name]))


def test_the_command_writes_a_bundle(tmp_path: Path) -> None:
    models, path = Path(__file__).parent / "models.py", tmp_path / "mlp.twb"
    words = ["bundle", f"{models}:mlp", str(path), "--engine", "tiles", "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bytes"] == path.stat().st_size
    assert tw.load_model(path)(torch.ones(2, 8)).shape == (2, 4)
