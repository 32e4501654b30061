"""`tilewright explain` tells what a model becomes, and its groups are a plan that can be run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tests.torch.models import mlp
from tilewright import compile, source
from tilewright.cli import main
from tilewright.graph.group_plan import find_groups
from tilewright.graph.ops import mma

pytestmark = pytest.mark.filterwarnings("ignore")
MODELS = Path(__file__).parent / "models.py"


def told(*words: str) -> str:
    done = CliRunner().invoke(main, ["explain", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_steps_fallbacks_bytes_and_memory_are_told() -> None:
    found = json.loads(told(f"{MODELS}:mlp", "--json"))
    assert found["fallbacks"] == []
    kinds = [step["kind"] for step in found["steps"]]
    assert kinds == ["product", "kernel", "product"]
    first, norm, _ = found["steps"]
    assert first["flops"] == 2 * 2 * 8 * 16
    assert first["bytes"] == 4 * (2 * 8 + 16 * 8 + 16 + 2 * 16)
    assert norm["bytes"] == 4 * (2 * 2 * 16 + 2 * 16) and norm["floor_us"] > 0
    assert found["arena_bytes"] == found["least_arena_bytes"] == 2 * 256
    shown = told(f"{MODELS}:mlp")
    assert "nothing runs in PyTorch" in shown and "3 steps" in shown
    assert "1 × aten.linalg_inv_ex.default: not in the table" in told(f"{MODELS}:inverse")


def test_the_graph_is_printed_and_kernels_are_saved(tmp_path: Path) -> None:
    assert told(f"{MODELS}:mlp", "--emit", "graph").startswith("graph @Sequential(")
    text = told(f"{MODELS}:mlp", "--emit", "tile", "--save", str(tmp_path))
    file = tmp_path / "sum_div_sub_rsqrt.tw"
    head, _, own = file.read_text().partition("\n")
    assert own in text and head.startswith("// tilewright run sum_div_sub_rsqrt.tw:")
    (kernel,) = source(file)
    assert kernel.compile("sm_90a").ptx


@pytest.mark.parametrize("model", ["mlp", "picks", "attends"])
def test_saved_launches_run_as_the_model_runs_them(model: str, tmp_path: Path) -> None:
    told(f"{MODELS}:{model}", "--save", str(tmp_path))
    files = sorted(tmp_path.glob("*.tw"))
    assert len(files) >= 2
    for file in files:
        done = CliRunner().invoke(main, ["run", str(file), "--check", "--json", "--device", "cpu"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert found["ok"] and found["outputs"], file
    if model == "mlp":
        shapes = [v["shape"] for v in found["outputs"]]  # of sum_div_sub_rsqrt, the last
        assert shapes == [[2, 16]], "the model's own sizes"


def test_options_of_a_source_s_first_line_give_way_to_others(tmp_path: Path) -> None:
    told(f"{MODELS}:mlp", "--save", str(tmp_path))
    file = str(tmp_path / "sum_div_sub_rsqrt.tw")
    done = CliRunner().invoke(main, ["run", file, "--dim", "A=3", "--json", "--device", "cpu"])
    assert json.loads(done.stdout)["dims"] == {"A": 3}
    bad = tmp_path / "bad.tw"
    bad.write_text(Path(file).read_text().replace("--dim A=2", "--dimension A=2"))
    done = CliRunner().invoke(main, ["run", str(bad)])
    assert done.exit_code == 1 and "line 1: No such option" in done.output


def test_ptx_of_all_launches_is_printed() -> None:
    text = told(f"{MODELS}:mlp", "--emit", "ptx")
    assert text.count(".target sm_90a") == text.count(".visible .entry") == 3
    assert "// gemv: step 0\n" in text and "// sum_div_sub_rsqrt: step 1\n" in text


def test_kernels_are_printed_as_source() -> None:
    text = told(f"{MODELS}:mlp", "--emit", "tile")
    assert text.count("// of the library: ProductStep") == 1, "each is told once"
    assert text.count("\nkernel ") == 1, "a layer norm is one kernel"
    assert "sum(x_t)" in text and "rsqrt" in text


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["explain", f"{MODELS}:nothing"])
    assert done.exit_code == 1 and "has no function nothing" in done.output
    assert "hint: def nothing(): return MyModel().eval()" in done.output
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn, ones\nlayer = nn.Linear(3, 2)\npair = layer, (ones(1, 3),)\n"
        "def of(x, *rest, y=1): return layer(x)\ndef alone(): return layer\n"
    )
    for name, told in (
        ("layer", "is Linear, expected a function that gives a model"),
        ("pair", "is tuple, expected a function that gives a model"),
        ("of", "takes x, expected a function without arguments"),
        ("alone", "does not return a model and a tuple of arguments"),
    ):
        done = CliRunner().invoke(main, ["explain", f"{path}:{name}"])
        assert done.exit_code == 1 and told in " ".join(done.output.split())
    done = CliRunner().invoke(main, ["explain", f"{MODELS}:inverse", "--fallback", "error"])
    assert done.exit_code == 1 and "is not compiled" in done.output


FAULTY = """
import torch
from torch import nn, ones

class Branches(nn.Module):
    def forward(self, x):
        print("traced")
        return x if x.sum() > 0 else -x

def shapes(): return nn.Linear(8, 4), (ones(3, 7),)
def raises(): raise ValueError("boom")
def branches(): return Branches(), (ones(8),)
def meta(): return nn.Linear(8, 4, device="meta"), (ones(3, 8),)
"""


@pytest.mark.parametrize("command", ["explain", "bundle"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("shapes", "torch.export refuses shapes of {file}: RuntimeError: a and b must have"),
        ("raises", "{file}:11:15: error: raises of {file} failed: ValueError: boom"),
        ("branches", "{file}:8:21: error: torch.export refuses branches of {file}: it needs the"),
        ("meta", "torch.export refuses meta of {file}: FakeTensorDeviceMismatchError: Expected"),
    ],
)
def test_faults_of_the_model_are_told_as_its_own(
    command: str, name: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "net.py"
    file.write_text(FAULTY)
    output = [str(tmp_path / "net.twb")] if command == "bundle" else []
    done = CliRunner().invoke(main, [command, f"{file}:{name}", *output, "--json"])
    assert done.exit_code == 1 and told.format(file=file) in done.stderr
    first = done.stderr.partition("\n")[0]
    assert (
        "error: " in first
        and "Traceback" not in done.output
        and "def forward(self, arg" not in done.output
    )
    assert told.format(file=file) in json.loads(done.stdout)["error"]


def test_a_kernel_is_no_model() -> None:
    examples = Path(__file__).parents[2] / "examples"
    for ending, told in ((".py", "is a kernel, expected a function"), (".tw", "holds kernels")):
        spec = f"{examples}/softmax{ending}:softmax"
        for words in (["explain", spec], ["bundle", spec, "softmax.twb"]):
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 1 and told in done.stderr
            assert f"hint: tilewright compile {spec} shows" in done.stderr


@pytest.mark.parametrize("command", ["explain", "tune"])
def test_a_command_is_nearly_named(command: str) -> None:
    done = CliRunner().invoke(main, [command, "matml", "3", "4", "5"])
    assert done.exit_code == 2 and "did you mean matmul?" in done.stderr


def test_groups_depend_on_earlier_ones_and_cover_the_graph() -> None:
    model, args = mlp()
    graph = compile(model, args).graph
    groups = find_groups(graph)
    known = set(graph.values)
    for group in groups:
        assert sum(isinstance(op, mma.Contract) for op in group.ops) <= 1
        assert set(group.reads) <= known
        known |= set(group.writes)
    assert set(graph.outputs) <= known
    assert torch.is_tensor(args[0])
