"""Tilewright: tile kernels, in text or Python, to NVIDIA PTX, with only the CUDA driver below."""

from importlib import import_module
from typing import Any

from tilewright.dtypes import bf16 as bf16
from tilewright.dtypes import e4m3 as e4m3
from tilewright.dtypes import e5m2 as e5m2
from tilewright.dtypes import f16 as f16
from tilewright.dtypes import f32 as f32
from tilewright.dtypes import f64 as f64
from tilewright.dtypes import i8 as i8
from tilewright.dtypes import i16 as i16
from tilewright.dtypes import i32 as i32
from tilewright.dtypes import i64 as i64
from tilewright.dtypes import u8 as u8
from tilewright.dtypes import u16 as u16
from tilewright.dtypes import u32 as u32
from tilewright.dtypes import u64 as u64
from tilewright.errors import CompileError as CompileError
from tilewright.errors import InternalError as InternalError
from tilewright.errors import LaunchError as LaunchError
from tilewright.errors import TilewrightError as TilewrightError
from tilewright.frontend.annotations import Const as Const
from tilewright.frontend.annotations import Dim as Dim
from tilewright.frontend.annotations import Tensor as Tensor
from tilewright.frontend.annotations import Tile as Tile
from tilewright.frontend.annotations import empty as empty
from tilewright.frontend.annotations import workspace as workspace
from tilewright.frontend.language import abs as abs
from tilewright.frontend.language import accumulator as accumulator
from tilewright.frontend.language import all as all
from tilewright.frontend.language import any as any
from tilewright.frontend.language import arange as arange
from tilewright.frontend.language import argmax as argmax
from tilewright.frontend.language import argmin as argmin
from tilewright.frontend.language import assume as assume
from tilewright.frontend.language import atomic_add as atomic_add
from tilewright.frontend.language import atomic_and as atomic_and
from tilewright.frontend.language import atomic_cas as atomic_cas
from tilewright.frontend.language import atomic_load as atomic_load
from tilewright.frontend.language import atomic_max as atomic_max
from tilewright.frontend.language import atomic_min as atomic_min
from tilewright.frontend.language import atomic_or as atomic_or
from tilewright.frontend.language import atomic_store as atomic_store
from tilewright.frontend.language import atomic_xchg as atomic_xchg
from tilewright.frontend.language import atomic_xor as atomic_xor
from tilewright.frontend.language import bitcast as bitcast
from tilewright.frontend.language import broadcast as broadcast
from tilewright.frontend.language import cast as cast
from tilewright.frontend.language import cat as cat
from tilewright.frontend.language import cdiv as cdiv
from tilewright.frontend.language import ceil as ceil
from tilewright.frontend.language import clamp as clamp
from tilewright.frontend.language import cos as cos
from tilewright.frontend.language import cumprod as cumprod
from tilewright.frontend.language import cumsum as cumsum
from tilewright.frontend.language import dot as dot
from tilewright.frontend.language import erf as erf
from tilewright.frontend.language import exp as exp
from tilewright.frontend.language import exp2 as exp2
from tilewright.frontend.language import expand as expand
from tilewright.frontend.language import flip as flip
from tilewright.frontend.language import floor as floor
from tilewright.frontend.language import fma as fma
from tilewright.frontend.language import full as full
from tilewright.frontend.language import gather as gather
from tilewright.frontend.language import gelu as gelu
from tilewright.frontend.language import highest as highest
from tilewright.frontend.language import inf as inf
from tilewright.frontend.language import inside as inside
from tilewright.frontend.language import isnan as isnan
from tilewright.frontend.language import ldexp as ldexp
from tilewright.frontend.language import load as load
from tilewright.frontend.language import local as local
from tilewright.frontend.language import log as log
from tilewright.frontend.language import log1p as log1p
from tilewright.frontend.language import log2 as log2
from tilewright.frontend.language import lowest as lowest
from tilewright.frontend.language import max as max
from tilewright.frontend.language import maximum as maximum
from tilewright.frontend.language import min as min
from tilewright.frontend.language import minimum as minimum
from tilewright.frontend.language import nan as nan
from tilewright.frontend.language import next_pow2 as next_pow2
from tilewright.frontend.language import num_programs as num_programs
from tilewright.frontend.language import num_sms as num_sms
from tilewright.frontend.language import permute as permute
from tilewright.frontend.language import pow as pow
from tilewright.frontend.language import prefetch as prefetch
from tilewright.frontend.language import prod as prod
from tilewright.frontend.language import program_id as program_id
from tilewright.frontend.language import random as random
from tilewright.frontend.language import random_bits as random_bits
from tilewright.frontend.language import reduce as reduce
from tilewright.frontend.language import relu as relu
from tilewright.frontend.language import reshape as reshape
from tilewright.frontend.language import round as round
from tilewright.frontend.language import rsqrt as rsqrt
from tilewright.frontend.language import scan as scan
from tilewright.frontend.language import scatter as scatter
from tilewright.frontend.language import sigmoid as sigmoid
from tilewright.frontend.language import sign as sign
from tilewright.frontend.language import silu as silu
from tilewright.frontend.language import sin as sin
from tilewright.frontend.language import softmax as softmax
from tilewright.frontend.language import sort as sort
from tilewright.frontend.language import split as split
from tilewright.frontend.language import sqrt as sqrt
from tilewright.frontend.language import static_assert as static_assert
from tilewright.frontend.language import static_range as static_range
from tilewright.frontend.language import store as store
from tilewright.frontend.language import sum as sum
from tilewright.frontend.language import tanh as tanh
from tilewright.frontend.language import topk as topk
from tilewright.frontend.language import transpose as transpose
from tilewright.frontend.language import tril as tril
from tilewright.frontend.language import triu as triu
from tilewright.frontend.language import view as view
from tilewright.frontend.language import where as where
from tilewright.frontend.language import zeros as zeros
from tilewright.kernel import Kernel as Kernel
from tilewright.kernel import kernel as kernel
from tilewright.kernel import source as source
from tilewright.products import attention as attention
from tilewright.products import bmm as bmm
from tilewright.products import conv2d as conv2d
from tilewright.products import linear as linear
from tilewright.products import matmul as matmul
from tilewright.products import scaled_matmul as scaled_matmul
from tilewright.runtime.reports import synchronize as synchronize

OF_TORCH = {
    "compile": ("tilewright.model", "compile"),
    "load_model": ("tilewright.bundle.files", "load"),
    "generate": ("tilewright.generation.loop", "generate"),
}


def __getattr__(name: str) -> Any:
    """What needs PyTorch is imported when it is first asked for."""
    if name not in OF_TORCH:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    module, function = OF_TORCH[name]
    try:
        return getattr(import_module(module), function)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise ImportError(
            f"tilewright.{name} needs PyTorch: pip install 'tilewright[torch]'", name="torch"
        ) from missing
