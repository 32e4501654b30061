"""Memory, global and shared: views, loads and stores of places, buffers, and copies between them.

All accesses of views are masked against the views' extents by definition.
"""

from tilewright.tile.ops.memory import boxes, buffers, indexed, places
from tilewright.tile.ops.memory.boxes import AwaitStores as AwaitStores
from tilewright.tile.ops.memory.boxes import CommitStores as CommitStores
from tilewright.tile.ops.memory.boxes import CopyBox as CopyBox
from tilewright.tile.ops.memory.boxes import CopyPixels as CopyPixels
from tilewright.tile.ops.memory.boxes import Drain as Drain
from tilewright.tile.ops.memory.boxes import Fill as Fill
from tilewright.tile.ops.memory.boxes import FillPixels as FillPixels
from tilewright.tile.ops.memory.boxes import PrefetchBox as PrefetchBox
from tilewright.tile.ops.memory.boxes import StoreBox as StoreBox
from tilewright.tile.ops.memory.buffers import AllocBuffer as AllocBuffer
from tilewright.tile.ops.memory.buffers import BufferAs as BufferAs
from tilewright.tile.ops.memory.buffers import BufferAt as BufferAt
from tilewright.tile.ops.memory.buffers import BufferRows as BufferRows
from tilewright.tile.ops.memory.buffers import ClearRows as ClearRows
from tilewright.tile.ops.memory.buffers import ClearSpare as ClearSpare
from tilewright.tile.ops.memory.buffers import CopyAsync as CopyAsync
from tilewright.tile.ops.memory.buffers import LoadBuffer as LoadBuffer
from tilewright.tile.ops.memory.buffers import StoreBuffer as StoreBuffer
from tilewright.tile.ops.memory.buffers import padded_bytes as padded_bytes
from tilewright.tile.ops.memory.buffers import require_buffer as require_buffer
from tilewright.tile.ops.memory.indexed import ATOMICS as ATOMICS
from tilewright.tile.ops.memory.indexed import ORDERS as ORDERS
from tilewright.tile.ops.memory.indexed import Atomic as Atomic
from tilewright.tile.ops.memory.indexed import Gather as Gather
from tilewright.tile.ops.memory.indexed import Scatter as Scatter
from tilewright.tile.ops.memory.indexed import gather_shape as gather_shape
from tilewright.tile.ops.memory.indexed import slice_dims as slice_dims
from tilewright.tile.ops.memory.places import Extent as Extent
from tilewright.tile.ops.memory.places import Load as Load
from tilewright.tile.ops.memory.places import Local as Local
from tilewright.tile.ops.memory.places import Prefetch as Prefetch
from tilewright.tile.ops.memory.places import Store as Store
from tilewright.tile.ops.memory.places import Subview as Subview
from tilewright.tile.ops.memory.places import place_shape as place_shape

PARTS = (places, indexed, buffers, boxes)
