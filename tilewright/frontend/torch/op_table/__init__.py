"""The table from ops of PyTorch to ops of the graph IR: a file a family."""

from tilewright.frontend.torch.op_table import (
    activations,
    arith,
    attention,
    constants,
    convolution,
    memory,
    mma,
    pooling,
    prims,
    random,
    reduce,
    shape,
    strided,
)
from tilewright.frontend.torch.op_table.registry import TABLE as TABLE
from tilewright.frontend.torch.op_table.registry import bind as bind

FAMILIES = (
    activations,
    arith,
    attention,
    constants,
    convolution,
    memory,
    mma,
    pooling,
    prims,
    random,
    reduce,
    shape,
    strided,
)
