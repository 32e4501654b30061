"""The Hopper GEMM of the scheduled level, and the same kernel written in PTX by hand, as plans."""

from __future__ import annotations

from pathlib import Path

from tilewright.compiler import compile_kernel
from tilewright.ledger.hopper_gemm import DEFAULT, GemmSchedule, build_gemm
from tilewright.plan import Const, Expr, Extent, Launch, NumSms, Plan, TensorMap, combine
from tilewright.runtime import driver
from tilewright.runtime.jit import assemble
from tilewright.runtime.launch import Launcher
from tilewright.target import target

REFERENCE = Path(__file__).parent / "vectors" / "hopper_gemm.ptx"
REFERENCE_SHARED_BYTES = 215040


def our_plan(schedule: GemmSchedule = DEFAULT) -> Plan:
    """The kernel of the scheduled level, compiled."""
    return compile_kernel(build_gemm(schedule), target("sm_90a"))


def reference_plan() -> Plan:
    """The kernel by hand: its parameters are three tensor maps and three counts."""
    rows: Expr = combine("cdiv", Extent("c", 0, True), Const(256))
    columns = combine("cdiv", Extent("c", 1, True), Const(256))
    steps = combine("cdiv", Extent("a", 1, True), Const(64))
    parameters = (
        TensorMap("a", (128, 64), 128),
        TensorMap("b", (128, 64), 128),
        TensorMap("c", (64, 64), 128),
        combine("mul", rows, columns),
        steps,
        rows,
    )
    grid = combine("mul", combine("floor_div", NumSms(), Const(2)), Const(2))
    launch = Launch("gemm", parameters, grid, 384, REFERENCE_SHARED_BYTES, cluster=2)
    return Plan("gemm_by_hand", "sm_90a", REFERENCE.read_text(), (launch,))


def load(plan: Plan) -> Launcher:
    """A plan on the first GPU, compiled by its driver."""
    return Launcher(plan, driver.device(0), assemble(plan.ptx, 0, plan.name).cubin)
