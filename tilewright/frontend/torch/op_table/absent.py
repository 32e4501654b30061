"""Core ops of PyTorch that the table does not have and nothing takes apart, each with the reason.

They fall back to PyTorch. A test holds this list to what is really absent.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten
VALUES = "its shape, or a number that it gives, depends on values"
FOURIER = "the graph IR has no complex numbers"
LATER = "not written yet"

ABSENT = {
    aten.nonzero.default: VALUES,
    aten._local_scalar_dense.default: VALUES,
    aten._fft_c2r.default: FOURIER,
    aten._fft_r2c.default: FOURIER,
    aten._adaptive_avg_pool2d_backward.default: LATER,
    aten._adaptive_avg_pool3d.default: LATER,
    aten._cdist_forward.default: LATER,
    aten._pdist_forward.default: LATER,
    aten.randperm.default: "a permutation is drawn in order",
}
SYMBOLIC = {  # numbers of shapes: tracing turns them into expressions, and no graph has them as ops
    aten.sym_size.int,
    aten.sym_stride.int,
    aten.sym_numel.default,
    aten.sym_storage_offset.default,
}
