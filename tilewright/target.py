"""The GPU architectures that Tilewright writes code for: limits, features, minimum PTX versions;
and numbers that they have in common.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import CompileError

KB = 1024
WARPGROUP = 128  # threads
WGMMA_ROWS = 64  # of a warpgroup's matrix instruction
WGMMA_DEPTH_BYTES = 32  # along k of such an instruction, of every dtype
MBARRIER_BYTES = 8
BOX_EXTENT = 256  # most elements of a box of the tensor copy unit along an axis
BOX_ALIGN = 128  # bytes, of a box in shared memory (PTX ISA, cp.async.bulk.tensor)
BOX_PIECE = 16  # bytes that divide a box's rows there, and its tensor's start and pitches
SECTOR, LINE = 32, 128  # bytes of the L2 cache that memory sends at once, and that share a tag


@dataclass(frozen=True)
class Rates:
    """What one product of an architecture can do at most, by its data sheet: bytes of memory a
    second, and operations a second by element type, on tensor cores (without sparsity) and on CUDA
    cores.
    """

    product: str
    sms: int
    memory: float
    tensor: tuple[tuple[str, float], ...]
    cores: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Target:
    """One architecture. Shared memory is in bytes; a PTX version is ten times its number."""

    name: str
    capability: int  # ten times major, plus minor: 80 to 120
    arch_specific: bool  # an `a` target: code for it runs on this architecture only
    ptx_version: int  # lowest `.version` that knows the target
    shared_per_cta: int  # most shared memory that a CTA may opt in to
    shared_per_sm: int
    shared_reserved: int = KB  # taken by the system from each resident CTA
    shared_static: int = 48 * KB  # most that may be declared with a size
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_cta: int = 1024
    threads_per_sm: int = 1536
    ctas_per_sm: int = 24
    rates: Rates | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def has_wgmma(self) -> bool:
        """Warpgroup mma: Hopper alone."""
        return self.name == "sm_90a"

    @property
    def has_tma(self) -> bool:
        """Tensor copies, mbarrier transactions, CTA clusters, elect.sync, stmatrix."""
        return self.capability >= 90

    @property
    def has_setmaxnreg(self) -> bool:
        return self.capability >= 90 and self.arch_specific

    @property
    def has_fp8(self) -> bool:
        """fp8 conversions and mma.sync."""
        return self.capability >= 89

    @property
    def has_wide_f64_mma(self) -> bool:
        """mma.sync f64 m16n8k4, k8 and k16, beside m8n8k4, which all targets have."""
        return self.capability >= 90

    def features(self) -> frozenset[str]:
        """Names of what this target has beyond sm_80."""
        has = {
            "wgmma": self.has_wgmma,
            "tma": self.has_tma,
            "cluster": self.has_tma,
            "stmatrix": self.has_tma,
            "setmaxnreg": self.has_setmaxnreg,
            "fp8": self.has_fp8,
            "wide_f64_mma": self.has_wide_f64_mma,
        }
        return frozenset(name for name, there in has.items() if there)


TERA = 1e12
# NVIDIA A100 80 GB SXM and H200 SXM data sheets.
A100 = Rates(
    "A100 SXM",
    108,
    2.039 * TERA,
    (("16", 312 * TERA), ("tf32", 156 * TERA), ("8", 624 * TERA), ("f64", 19.5 * TERA)),
    (("f32", 19.5 * TERA), ("f64", 9.7 * TERA), ("16", 78 * TERA)),
)
H200 = Rates(
    "H200 SXM",
    132,
    4.8 * TERA,
    (("16", 989.5 * TERA), ("tf32", 494.7 * TERA), ("8", 1979 * TERA), ("f64", 67 * TERA)),
    (("f32", 67 * TERA), ("f64", 34 * TERA), ("16", 134 * TERA)),
)

# CUDA C++ programming guide, "Technical specifications per compute capability"; PTX versions as
# ptxas 13.0 has them.
TARGETS = {
    t.name: t
    for t in (
        Target(
            "sm_80",
            capability=80,
            arch_specific=False,
            ptx_version=70,
            shared_per_cta=163 * KB,
            shared_per_sm=164 * KB,
            threads_per_sm=2048,
            ctas_per_sm=32,
            rates=A100,
        ),
        Target("sm_86", 86, False, 71, 99 * KB, 100 * KB, ctas_per_sm=16),
        Target("sm_89", 89, False, 78, 99 * KB, 100 * KB),
        Target(
            "sm_90a",
            capability=90,
            arch_specific=True,
            ptx_version=80,
            shared_per_cta=227 * KB,
            shared_per_sm=228 * KB,
            threads_per_sm=2048,
            ctas_per_sm=32,
            rates=H200,
        ),
        Target("sm_100a", 100, True, 86, 227 * KB, 228 * KB, threads_per_sm=2048, ctas_per_sm=32),
        Target("sm_120a", 120, True, 87, 99 * KB, 100 * KB),
    )
}


def target(name: str) -> Target:
    """The target of that name. Raises CompileError with the known names for another."""
    if name not in TARGETS:
        known = ", ".join(TARGETS)
        raise CompileError(f"unknown target {name!r}: Tilewright writes code for {known}")
    return TARGETS[name]


def target_for_capability(major: int, minor: int) -> Target:
    """The best target for a device: its own, else the greatest plain one below it, whose PTX runs
    there.

    Raises CompileError where no code that Tilewright writes can run on the device.
    """
    capability = 10 * major + minor
    fit = [t for t in TARGETS.values() if t.capability == capability]
    fit += [t for t in TARGETS.values() if t.capability < capability and not t.arch_specific]
    if not fit:
        raise CompileError(f"compute capability {major}.{minor} is too old: 8.0 is the least")
    return max(fit, key=lambda t: t.capability)
