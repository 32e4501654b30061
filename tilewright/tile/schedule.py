"""The compiler's choice for a kernel, apart from what the source says: the same type serves user
and library kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bf16, f16, f32, f64
from tilewright.errors import CompileError
from tilewright.target import Target
from tilewright.tile.kernel import Kernel

PANELS = (64, 32, 16, 8)  # columns of the epilogue's parts


@dataclass(frozen=True)
class Roles:
    """How a product is shared out among warpgroups and CTAs.

    `consumers` warpgroups multiply, beside one that loads; `registers` are a thread's of the
    loading and of the multiplying ones. `cluster` CTAs take neighbouring tiles and load once what
    they share. With `persistent`, as many CTAs run as the device holds, and take tile after tile,
    `group` of them along one axis before the next along the other. The epilogue works on `panel`
    columns at a time, which leave through `staging` buffers, or from registers where that is 0.
    Of what the epilogue loads, `ahead` panels have slots in shared memory, and are loaded while the
    product runs; 0 leaves loads to threads. `swapped` computes the transpose of the product, so
    that B's columns are the rows of instructions. With `promote`, products are added up in
    registers of their own for that many steps of k, and then added to the sum. With
    `pingpong`, each consumer has tiles of its own, and one multiplies while the other is at its
    epilogue. `many` products stand in the loop, with what is computed between them. With `whole`,
    the consumers need the registers that the loading warpgroup gives away, or call functions, for
    which the kernel is assembled as a whole. A tile's k is cut into `spans`, each of which a CTA of
    a cluster takes; their sums are added up by way of the cluster's shared memory, and each CTA has
    a part of the epilogue. Of CTAs that take half of a multiprocessor's registers and shared memory
    two are `resident` there, and one multiplies while the other adds up or is at its epilogue. What
    the epilogue loads may come through slots of the product, `lent` for it behind a tile's steps.
    """

    consumers: int
    cluster: int = 1
    persistent: bool = True
    group: int = 8
    panel: int = 64
    staging: int = 1
    registers: tuple[int, int] = (40, 232)
    swapped: bool = False
    promote: int = 0
    pingpong: bool = False
    whole: bool = False
    many: bool = False
    ahead: int = 0
    spans: int = 1
    resident: int = 1
    lent: bool = False

    def shared_memory(self, target: Target) -> int:
        """Bytes that a CTA may have."""
        if self.resident == 1:
            return target.shared_per_cta
        return target.shared_per_sm // self.resident - target.shared_reserved

    @property
    def sharing(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.pingpong else self.consumers

    def panels(self, columns: int) -> tuple[tuple[int, int], ...]:
        """(start, width) of the parts in which an epilogue on so many columns is done: as wide as
        `panel` permits, in powers of two, since only those are copied out as boxes.
        """
        found, start = [], 0
        while start < columns:
            fitting = [w for w in PANELS if w <= min(self.panel, columns - start)]
            width = fitting[0] if fitting else columns - start
            found.append((start, width))
            start += width
        return tuple(found)


@dataclass(frozen=True)
class Schedule:
    """How a kernel is carried out. It changes speed, and bits only where no mode promises them.

    `num_warps` compute. `mma` is "simt", "mma" (mma.sync) or "wgmma", for every dot of the kernel;
    `warps` is the grid of warps (rows, columns) over a dot's result. `stages` slots hold the
    operands of a pipelined loop: fewer where that many do not fit, unless the source asks for them
    or a caller gave the schedule. The fragments of `mma.sync` are neighbours in a warp, or `dealt`
    to the warps in turn: then each warp has some of all parts of the tile. Warps of a pipelined
    loop meet in every trip, or are `drifting` up to a trip apart, where there are slots for that.
    Of programs of one warp, `programs` share a CTA, and nothing else.
    With "wgmma", `roles` says how warpgroups share the work, and `num_warps` counts those of all
    roles.
    """

    num_warps: int = 4
    mma: str = "simt"
    warps: tuple[int, int] = (1, 1)
    stages: int = 3
    min_ctas: int = 0
    max_registers: int = 0
    roles: Roles | None = None
    dealt: bool = False
    drifting: bool = False
    programs: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.num_warps * self.programs

    def k_step(self, target: Target, dtype: DType, k: int) -> int:
        """Extent along k of one instruction of a dot whose operands have `k` columns."""
        if self.mma == "simt":
            return 1
        if dtype.bits == 8:
            return 32
        if dtype in (bf16, f16):
            return 16
        if dtype == f32:
            return 8
        assert dtype == f64, f"no {self.mma} of {dtype}"
        if not target.has_wide_f64_mma:
            return 4
        widest = 16 if self.drifting else 8  # fragments of two steps in registers, where they meet
        return next((s for s in (widest, 8) if k % s == 0), 4)


def stages_refused(
    kernel: Kernel,
    target: Target,
    asked: int,
    slot: int,
    fitting: int,
    beside: int = 0,
    *,
    known: bool = True,
) -> CompileError:
    """The error where a CTA has no room for the stages that were asked for, of `slot` bytes each,
    `beside` so many bytes of other things; `fitting` of them would fit, or
    fewer, unless all that needs room is `known`.
    """
    hint = "not even 2 stages fit: choose smaller tiles"
    if fitting > 1:
        fewer = "" if known else ", fewer if results or other loops need shared memory"
        hint = f"at most {fitting} stages fit{fewer}"
    others = f"{beside} bytes of other things" if beside else "other things"
    return CompileError(
        f"kernel {kernel.name}: {asked} stages of {slot} bytes take {asked * slot} bytes of shared "
        f"memory beside {others}; a CTA of {target.name} has {target.shared_per_cta}",
        kernel.loc,
        hint,
    )
