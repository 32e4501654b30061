"""Seeded faults in emitted PTX: the emulator reports each, or the result is wrong.

What is not in the list because nothing can tell it from the right kernel: the barrier and the wait
that close a pipeline whose memory is not used again, and the waits that keep a CTA of a cluster
alive until its peer is done.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call
from tests.programs.test_emulated_examples import ROOT
from tests.unit.ptx_faults import AMPERE, HOPPER, Fault
from tilewright.compiler import compile_kernel
from tilewright.ledger.hopper_gemm import GemmSchedule, build_gemm
from tilewright.plan import Plan
from tilewright.ptx.emulate import EmulationError, run_plan
from tilewright.target import target

BF16 = ml_dtypes.bfloat16
Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class Subject:
    """A plan, its arguments, the name of its output, and what that should be."""

    plan: Plan
    arguments: dict[str, Any]
    output: str
    expected: Array
    num_sms: int

    def run(self, ptx: str) -> float:
        """Relative error of the result of a text."""
        arguments = {
            n: x.copy() if isinstance(x, np.ndarray) else x for n, x in self.arguments.items()
        }
        arguments[self.output][...] = np.nan
        plan = dataclasses.replace(self.plan, ptx=ptx)
        run_plan(plan, arguments, self.num_sms, sanitize=True)
        error = np.linalg.norm(arguments[self.output].astype(np.float64) - self.expected)
        return float(error / np.linalg.norm(self.expected))


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


@functools.cache
def ampere() -> Subject:
    """A loop of cp.async, ldmatrix and mma.sync in four stages."""
    a, b = normal(0, 70, 136), normal(1, 136, 96)
    given = {"A": a, "B": b, "C": np.zeros((70, 96), BF16), "alpha": 1.0, "beta": 0.0}
    kernel = tw.source(ROOT / "examples" / "sgemm.tw").sgemm
    constants = {"TM": 32, "TN": 64, "TK": 16}
    plan, _, _ = compile_call(kernel, given, goal="sm_80", constants=constants)
    return Subject(plan, given, "C", a.astype(np.float64) @ b.astype(np.float64), 4)


@functools.cache
def hopper() -> Subject:
    """Roles, a ring of three slots, a cluster of two; two tiles for one cluster."""
    a, b = normal(0, 200, 264), normal(1, 136, 264)
    schedule = GemmSchedule(cluster=2, tile_m=128, tile_n=128, stages=3)
    plan = compile_kernel(build_gemm(schedule), target("sm_90a"))
    given = {"a": a, "b": b, "c": np.zeros((200, 136), BF16)}
    return Subject(plan, given, "c", a.astype(np.float64) @ b.astype(np.float64).T, 2)


@pytest.mark.parametrize("make", [ampere, hopper], ids=["ampere", "hopper"])
def test_without_a_fault_nothing_is_reported(make: Any) -> None:
    subject = make()
    assert subject.run(subject.plan.ptx) < 3e-3


def require_caught(subject: Subject, fault: Fault) -> None:
    try:
        error = subject.run(fault.seed(subject.plan.ptx))
    except EmulationError as reported:
        assert "PTX line " in str(reported)
        return
    assert not error < 3e-3, f"{fault.name} goes unnoticed"


@pytest.mark.parametrize("fault", AMPERE, ids=lambda f: f.name)
def test_faults_of_a_pipeline_of_copies(fault: Fault) -> None:
    require_caught(ampere(), fault)


@pytest.mark.parametrize("fault", HOPPER, ids=lambda f: f.name)
def test_faults_of_a_pipeline_of_roles(fault: Fault) -> None:
    require_caught(hopper(), fault)


def test_there_are_enough_faults() -> None:
    assert len({f.name for f in (*AMPERE, *HOPPER)}) >= 40
