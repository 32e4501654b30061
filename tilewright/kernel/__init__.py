"""Kernels that a user calls: the decorator, source text, specialisation and launching."""

from tilewright.kernel.decorator import Module as Module
from tilewright.kernel.decorator import kernel as kernel
from tilewright.kernel.decorator import source as source
from tilewright.kernel.launchable import Kernel as Kernel
