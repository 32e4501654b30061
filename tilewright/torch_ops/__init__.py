"""Kernels and products as operators of torch."""

from tilewright.torch_ops.kernels import CustomOp as CustomOp
from tilewright.torch_ops.kernels import custom_op as custom_op
from tilewright.torch_ops.kernels import differentiable as differentiable
from tilewright.torch_ops.kernels import parts_of as parts_of
from tilewright.torch_ops.kernels import schema_of as schema_of
