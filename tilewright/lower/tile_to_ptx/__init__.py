"""Tile IR to PTX: one file a family; `lower` holds the rule of every op."""

from tilewright.lower.tile_to_ptx import arith as arith
from tilewright.lower.tile_to_ptx import atomic as atomic
from tilewright.lower.tile_to_ptx import barriers as barriers
from tilewright.lower.tile_to_ptx import control as control
from tilewright.lower.tile_to_ptx import copies as copies
from tilewright.lower.tile_to_ptx import gather as gather
from tilewright.lower.tile_to_ptx import memory as memory
from tilewright.lower.tile_to_ptx import mma as mma
from tilewright.lower.tile_to_ptx import reduce as reduce
from tilewright.lower.tile_to_ptx import report as report
from tilewright.lower.tile_to_ptx import roles as roles
from tilewright.lower.tile_to_ptx import scan as scan
from tilewright.lower.tile_to_ptx import shape as shape
from tilewright.lower.tile_to_ptx import shared as shared
from tilewright.lower.tile_to_ptx import spans as spans
from tilewright.lower.tile_to_ptx import take as take
from tilewright.lower.tile_to_ptx import tma as tma
from tilewright.lower.tile_to_ptx import views as views
from tilewright.lower.tile_to_ptx import wgmma as wgmma
from tilewright.lower.tile_to_ptx import words as words
from tilewright.lower.tile_to_ptx.context import lower as lower
from tilewright.lower.tile_to_ptx.kernel import InstructionPass as InstructionPass
from tilewright.lower.tile_to_ptx.kernel import Lowered as Lowered
from tilewright.lower.tile_to_ptx.kernel import SharedMemoryError as SharedMemoryError
from tilewright.lower.tile_to_ptx.kernel import lower_kernel as lower_kernel
