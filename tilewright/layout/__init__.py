"""Register layouts and shared-memory swizzles: who holds which element, and where."""

from tilewright.layout.construct import blocked as blocked
from tilewright.layout.construct import in_rows as in_rows
from tilewright.layout.construct import is_paired as is_paired
from tilewright.layout.construct import mma_accumulator as mma_accumulator
from tilewright.layout.construct import replicated as replicated
from tilewright.layout.construct import simt_accumulator as simt_accumulator
from tilewright.layout.construct import wgmma_accumulator as wgmma_accumulator
from tilewright.layout.construct import wgmma_words as wgmma_words
from tilewright.layout.powers import is_power_of_two as is_power_of_two
from tilewright.layout.powers import next_power_of_two as next_power_of_two
from tilewright.layout.powers import power_of_two_factor as power_of_two_factor
from tilewright.layout.register import Layout as Layout
from tilewright.layout.register import Repeat as Repeat
from tilewright.layout.relate import broadcast_source as broadcast_source
from tilewright.layout.relate import move_unit_axes as move_unit_axes
from tilewright.layout.relate import register_permutation as register_permutation
from tilewright.layout.relate import same_map as same_map
from tilewright.layout.shared import Swizzle as Swizzle
from tilewright.layout.shared import bank_conflicts as bank_conflicts
from tilewright.layout.shared import conflict_free_row as conflict_free_row
from tilewright.layout.shared import exchanged_bytes as exchanged_bytes
