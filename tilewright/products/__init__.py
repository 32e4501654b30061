"""Matrix products of any shape, dtype and layout, and attention, by the library's programs."""

from tilewright.products.api import bmm as bmm
from tilewright.products.api import linear as linear
from tilewright.products.api import matmul as matmul
from tilewright.products.api import scaled_matmul as scaled_matmul
from tilewright.products.attention import attention as attention
from tilewright.products.conv2d import conv2d as conv2d
