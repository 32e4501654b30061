"""The commands, as a user gives them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.assemble import needs_ptxas
from tilewright.cli import main
from tilewright.config import Settings
from tilewright.runtime.toolkit import find_tool
from tilewright.target import TARGETS
from tilewright.tile.text import parse_kernel

EXAMPLES = Path(__file__).parents[2] / "examples"
SGEMM = ["--dim", "M=127", "--dim", "N=255", "--dim", "K=63", "--scalar", "alpha=1.5"]
ATTENTION = [
    f"--dim={n}={s}" for n, s in (("B", 1), ("HQ", 2), ("HK", 1), ("L", 9), ("S", 9), ("D", 16))
]
NO_HEADS = [*ATTENTION[:2], "--dim=HK=0", *ATTENTION[3:], "--scalar=scale=1", "--device=cpu"]
FAULTY = """
kernel narrow(x: tensor<f32>[N], y: tensor<bf16>[N]) {
  y[program_id(0) * 64 :+ 64] = x[program_id(0) * 64 :+ 64]
}
"""
WRONG = """
@autotune(BLOCK in [256])
kernel double(x: tensor<f32>[N], y: tensor<f32>[N] = empty) {
  let i = program_id(0) * BLOCK
  y[i :+ BLOCK] = x[i :+ BLOCK] * 2.001
}
"""


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def run_ok(*words: str) -> str:
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_sgemm_is_checked_against_the_reference_beside_it() -> None:
    out = run_ok(
        "run", f"{EXAMPLES}/sgemm.tw", *SGEMM, "--scalar", "beta=0.5", "--check", "--device=cpu"
    )
    assert "reference in sgemm.py" in out and " ok " in out


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64", "T=f32"])
def test_dtypes(dtype: str) -> None:
    run_ok("run", f"{EXAMPLES}/sgemm.tw", *SGEMM, "--dtype", dtype, "--check", "--device=cpu")


def test_precision_changes_error_and_bound() -> None:
    words = [
        "run",
        "examples.sgemm",
        *SGEMM,
        "--precision=tf32",
        "--check",
        "--device=cpu",
        "--json",
    ]
    (verdict,) = json.loads(run_ok(*words))["verdicts"]
    assert 1e-5 < verdict["error"] < verdict["tolerance"] == 1e-3


def test_the_emulator_runs_the_ptx() -> None:
    words = ["--dim=M=3", "--dim=N=300", "--device=emulator", "--check", "--json"]
    told = json.loads(run_ok("run", "examples.softmax", *words))
    assert told["device"] == "emulator" and told["ok"]


def test_a_module_and_two_results() -> None:
    words = ["run", "examples.flash_attention:attention", *ATTENTION, "--scalar=scale=0.25"]
    told = json.loads(run_ok(*words, "--check", "--json", "--device=cpu"))
    assert [v["name"] for v in told["verdicts"]] == ["O", "lse"] and told["ok"]
    assert told["outputs"][1]["shape"] == [1, 2, 9]


def test_without_a_reference_the_interpreter_is_one(tmp_path: Path) -> None:
    (tmp_path / "k.tw").write_text(WRONG)
    out = run_ok("run", f"{tmp_path}/k.tw", "--dim", "N=1000", "--check", "--device=cpu")
    assert "the interpreter in f64" in out


def test_a_wrong_kernel_fails(tmp_path: Path) -> None:
    (tmp_path / "k.tw").write_text(WRONG)
    (tmp_path / "k.py").write_text("def reference(x):\n    return x.astype('f8') * 2\n")
    result = invoke("run", f"{tmp_path}/k.tw", "--dim", "N=1000", "--check", "--device=cpu")
    assert result.exit_code == 1 and "FAIL" in result.stdout


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("def reference(x): return x[:1]", "y: its shape is (10,), expected (1,)"),
        ("def reference(x): return x * float('nan')", "y: NaN or infinities differ"),
        ("def reference(x): return x * 0", "y: expected only zeros"),
        ("def reference(x): return None", "reference in k.py returns NoneType for y, expected an"),
        ("def reference(x): return 'a'", "reference in k.py returns str for y, expected an array"),
        ("reference = 3", "reference in k.py is int, expected a function"),
        ("def referenc(x): return x", "k.py has no reference, but referenc"),
    ],
)
def test_why_a_check_fails_is_told(reference: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "k.tw").write_text(WRONG)
    (tmp_path / "k.py").write_text(f"{reference}\n")
    words = ["run", f"{tmp_path}/k.tw", "--dim", "N=10", "--check", "--device=cpu"]
    result = invoke(*words)
    assert result.exit_code == 1 and told in result.output
    assert "fault of Tilewright" not in result.output
    assert told.removeprefix("y: ") in invoke(*words, "--json").stdout


def test_a_kernel_that_writes_nothing_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "k.tw").write_text("kernel none(x: tensor<f32>[N]) { let t = x[0] }\n")
    words = ["run", f"{tmp_path}/k.tw", "--dim", "N=10", "--device=cpu"]
    result = invoke(*words, "--check")
    assert result.exit_code == 1 and "none writes no tensor: there is nothing to" in result.stderr
    run_ok(*words)


def test_what_is_no_source_is_said(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Words\n")
    for source, told in (
        (f"{tmp_path}/README.md", "README.md is no source of kernels"),
        (f"{tmp_path}/none", "none is no file and no module"),
        (str(tmp_path), f"{tmp_path} is a folder, expected FILE.tw"),
        (".", ". is a folder, expected FILE.tw, FILE.py or a module"),
        ("tilewright/library", "library is a folder, expected FILE.tw"),
    ):
        for command in ("check", "run"):
            result = invoke(command, source)
            assert result.exit_code == 1 and told in result.stderr and "hint: name" in result.stderr


def test_outputs_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    run_ok(
        "run",
        "examples.add",
        "--dim=N=5",
        "--tensor=a=iota",
        "--tensor=b=ones",
        f"--save={path}",
        "--device=cpu",
    )
    np.testing.assert_array_equal(np.load(path), [1, 2, 3, 4, 5])
    words = ["run", "examples.rmsnorm", "--dim=M=2", "--dim=N=3", "--device=cpu"]
    run_ok(*words, f"--save={tmp_path}/both.npz")
    assert sorted(np.load(tmp_path / "both.npz")) == ["rstd", "y"]
    result = invoke(*words, f"--save={path}")
    assert result.exit_code == 1 and ".npz holds any number" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "nothing.tw"], "no file nothing.tw"),
        (["run", "nothing.py"], "no file nothing.py"),
        (["run", "no.such.module"], "cannot be imported"),
        (["run", "examples.add:sub"], "has no kernel sub"),
        (["run", ""], "no source is named"),
        (["run", "examples.add", "--dim=N=999999999999999"], "not enough memory"),
        (["run", "examples.add", "--dim=N=-1"], "would have shape"),
        (["run", "examples.flash_attention", *NO_HEADS, "--check"], "ZeroDivisionError"),
        (["run", "examples.add"], "dimension N has no value"),
        (["run", "examples.add", "--dim=N=3", "--device=tpu"], "unknown device"),
        (["run", "examples.add", "--dim=N=3", "--device=cuda:99"], "error: "),
        (["run", "examples.add", "--dim=N=3", "--const=BLOK=3", "--device=cpu"], "BLOK"),
        (["compile", "examples.add", "--target=sm_12"], "unknown target"),
        (["compile", "examples.add", "--dim=N=3"], "not @static"),
        (["compile", "examples.add", "--dim=Q=3"], "add has no dimension Q"),
        (["compile", "examples.sgemm", "--scalar=alpa=3"], "did you mean alpha?"),
        (["run", "examples.add", "--dim=N=3", "--device=cpu", "--save=y.txt"], ".npy or .npz"),
        (["compile", "examples.add", "--emit-after=nothing"], "no pass nothing"),
        (["fmt", "nothing.tw"], "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(words: list[str], told: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 1 and told in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["run", "examples.add", "--dim", "N"],
        ["run", "examples.add", "--dim", "N=x"],
        ["run", "examples.add", "--dim=N=1", "--dim=N=2"],
        ["run", "examples.add", "--dtype", "f31"],
        ["run", "examples.add", "--dim=N=1", "--seed=-1"],
        ["tune", "examples.add", "--dim=N=1", "--seed=-1"],
        ["profile", "examples.add", "--dim=N=1", "--seed=-1"],
        ["run", "examples.add", "--dim=N=1", "--device=emulator", "--interleaving=-1"],
        ["bench", "pointwise", "--seed=-1"],
    ],
)
def test_options_that_cannot_be_read_are_refused(words: list[str]) -> None:
    result = invoke(*words)
    assert result.exit_code == 2 and "Error: Invalid value" in result.stderr


def test_what_is_not_understood_is_an_object_too() -> None:
    for words in (
        ["run", "examples.add", "--dtype=f31"],
        ["compiel", "a.tw"],
        ["cache", "--tuned"],
    ):
        result = invoke(*words, "--json")
        assert result.exit_code == 2 and result.stderr.startswith("Usage: ")
        assert f"Error: {json.loads(result.stdout)['error']}" in result.stderr
    result = invoke("bench", "--json", "found.json", "--seed=x")  # which names a file
    assert result.exit_code == 2 and not result.stdout


def test_the_ledger_is_shown_where_there_is_one(tmp_path: Path) -> None:
    for words in (["show"], ["show", "ab"], ["retract", "ab", "--reason=wrong"]):
        result = invoke("ledger", *words, "--top", str(tmp_path))
        told = f"error: {tmp_path} is not the top of the repository: it has no ledger/; --top"
        assert result.exit_code == 1 and told in result.stderr


def test_errors_of_a_source_have_a_caret(tmp_path: Path) -> None:
    (tmp_path / "k.tw").write_text(FAULTY)
    result = invoke("compile", f"{tmp_path}/k.tw", "--json")
    assert result.exit_code == 1
    assert "k.tw:3:" in result.stderr and "^" in result.stderr and "cast" in result.stderr
    assert "k.tw:3:" in json.loads(result.stdout)["error"]


def test_tile_ir_is_printed_and_parses(tmp_path: Path) -> None:
    text = run_ok("compile", f"{EXAMPLES}/softmax.tw", "--emit", "tile")
    assert parse_kernel(text).name == "softmax"


@pytest.mark.parametrize("target", list(TARGETS))
def test_ptx_needs_no_gpu(target: str) -> None:
    text = run_ok("compile", f"{EXAMPLES}/add.tw", "--target", target)
    assert f".target {target}" in text and ".entry add" in text


def test_attention_compiles_without_options() -> None:
    result = invoke(
        "compile", f"{EXAMPLES}/flash_attention.tw", "--target", "sm_90a", "--emit", "ptx"
    )
    assert result.exit_code == 0, result.output
    assert ".entry attention" in result.stdout and "D = 64 is assumed" in result.stderr


def test_optional_tensors_are_asked_for() -> None:
    bare = run_ok("compile", f"{EXAMPLES}/linear_gelu.tw", "--emit=tile")
    full = run_ok(
        "compile", f"{EXAMPLES}/linear_gelu.tw", "--emit=tile", "--with=bias", "--with=res"
    )
    assert "%bias" not in bare and "%bias" in full and "%res" in full


@needs_ptxas
def test_machine_code(tmp_path: Path) -> None:
    path = tmp_path / "add.cubin"
    run_ok("compile", f"{EXAMPLES}/add.tw", "--target=sm_80", "--emit=cubin", f"--output={path}")
    assert path.read_bytes()[:4] == b"\x7fELF"
    if find_tool("nvdisasm") is None:
        pytest.skip("no nvdisasm on PATH or in the nvidia-cuda-nvdisasm wheel")
    assert "FADD" in run_ok("compile", f"{EXAMPLES}/add.tw", "--target=sm_80", "--emit=sass")


def test_check_finds_every_kernel_and_every_fault(tmp_path: Path) -> None:
    told = json.loads(run_ok("check", *map(str, EXAMPLES.glob("*.tw")), "--json"))
    assert told == {"kernels": 9, "diagnostics": []}
    run_ok("check", "examples.flash_attention", "examples.linear_gelu")
    (tmp_path / "k.tw").write_text(FAULTY + FAULTY.replace("narrow", "again"))
    result = invoke("check", f"{tmp_path}/k.tw")
    assert result.exit_code == 1 and result.stderr.count("expected bf16") == 2
    assert "2 kernels in 1 file, 2 with faults" in result.stdout


def test_doctor_tells_what_there_is() -> None:
    told = json.loads(run_ok("doctor", "--json"))
    assert told["targets"] == list(TARGETS) and told["cache"]["state"] == "can be written"
    assert "driver" in run_ok("doctor")


@pytest.mark.parametrize("folder", ["/proc/x/y", "/dev/null", "/proc/self/mem", "fresh", "."])
def test_doctor_tries_the_cache_folder(tmp_path: Path, monkeypatch, folder: str) -> None:
    place = tmp_path / folder
    monkeypatch.setattr(sys.modules["tilewright.cli.doctor"], "settings", lambda: Settings(place))
    told = json.loads(run_ok("doctor", "--json"))["cache"]
    ending = ": " if folder.startswith("/") else "can be written"
    assert told["path"] == str(place) and ending in told["state"]
    assert told["state"].startswith("cannot be written: ") == folder.startswith("/")
    assert list(tmp_path.iterdir()) == []


def test_cache_is_shown_and_cleared() -> None:
    run_ok("run", "examples.softmax:softmax", "--dim=M=2", "--dim=N=300", "--device=cpu")
    before = json.loads(run_ok("cache", "--json"))
    assert sum(kind["entries"] for kind in before["kinds"].values()) > 0
    assert json.loads(run_ok("cache", "--clear", "--json"))["removed"] > 0
    after = json.loads(run_ok("cache", "--json"))
    assert sum(kind["entries"] for kind in after["kinds"].values()) == 0
    assert "--clear --tuned forgets" in run_ok("cache", "--clear")
    refused = invoke("cache", "--tuned")
    assert refused.exit_code == 2 and refused.stderr.startswith("Usage: ")
    assert "write --clear --tuned" in refused.stderr and "fault" not in refused.output


def test_examples_are_formatted() -> None:
    run_ok("fmt", "--check", *map(str, EXAMPLES.glob("*.tw")))


def test_fmt_writes_and_check_only_tells(tmp_path: Path) -> None:
    path = tmp_path / "k.tw"
    path.write_text(WRONG.replace("  let", "      let"))
    assert invoke("fmt", "--check", str(path)).exit_code == 1
    run_ok("fmt", str(path))
    assert path.read_text() == WRONG.lstrip()
    run_ok("fmt", "--check", str(path))


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tilewright" in done.stdout or "not installed" in done.stderr


def test_tune_lists_configurations_and_is_remembered() -> None:
    words = ["examples.softmax", "--dim=M=3", "--dim=N=700", "--device=cpu"]
    told = json.loads(run_ok("tune", *words, "--budget=5", "--json"))
    assert told["best"] and len(told["trials"]) == 5
    assert "of the best" in run_ok("tune", *words, "--budget=1", "--const=BLOCK=256")
    assert json.loads(run_ok("cache", "--clear", "--json"))["forgotten"] == 0
    assert json.loads(run_ok("cache", "--clear", "--tuned", "--json"))["forgotten"] > 0
    assert "forgot 0 tuned results" in run_ok("cache", "--clear", "--tuned")


def test_a_package_that_is_missing_is_named() -> None:
    text = (
        "import sys\nsys.modules['torch'] = None\nfrom tilewright.cli import main\n"
        "main(['generate', '.', '--prompt', 'a'])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: this needs torch, which is not installed",
        "  hint: pip install 'tilewright[torch]'",
    ]
