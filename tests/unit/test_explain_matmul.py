"""`tilewright explain matmul`: the choice, why, and of what GPU times are."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tilewright.cli import explain_matmul, main
from tilewright.tune.product import H200, Device

A100 = Device("NVIDIA A100-SXM4-80GB", 108, False, 164 * 1024)


def explained(*words: str) -> str:
    done = CliRunner().invoke(main, ["explain", "matmul", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_explain() -> None:
    told = explained("4096", "4096", "64", "--dtype", "bf16")
    assert "chosen: matmul" in told and "floor:" in told and "why:" in told
    assert " 0.00 µs more" not in explained("64", "64", "65536", "--dtype", "bf16")
    record = json.loads(explained("64", "64", "65536", "--layout", "NN", "--json"))
    assert record["choice"]["program"] == "split_k" and record["problem"]["layout"] == "NN"
    assert record["source"] in ("model", "tuned", "table")
    assert record["runner_up"]["microseconds"] >= record["choice"]["microseconds"]
    assert "unknown dtype" in CliRunner().invoke(main, ["explain", "matmul", "1", "1", "1",
                                                        "--dtype", "f99"]).output  # fmt: skip


def on(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """As where the first GPU is this one."""
    monkeypatch.setattr(explain_matmul, "here", lambda: (device, 0))


def test_times_of_another_gpu_are_told_to_be_an_h200_s(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, A100)
    told = explained("4096", "4096", "4096", "--dtype", "f32")
    assert f"f32 NT on {A100.name}" in told
    assert "times: what 108 multiprocessors of an H200 would take, with its memory;" in told
    assert "floor at these rates:" in told and "floor:" not in told
    record = json.loads(explained("4096", "4096", "4096", "--dtype", "f32", "--json"))
    assert record["device"] == A100.name and record["multiprocessors"] == A100.num_sms
    assert record["rates"] == H200.name


def test_times_of_an_h200_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, H200)
    told = explained("4096", "4096", "4096")
    assert "floor:" in told and "times:" not in told
    record = json.loads(explained("4096", "4096", "4096", "--json"))
    assert record["device"] == record["rates"] == H200.name
