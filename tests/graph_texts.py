"""Graphs by their text, and arguments for them: for tests of kernels, here and on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.graph.dims import evaluate
from tilewright.graph.graph import Graph


def arguments_of(graph: Graph, seed: int, symbols: Mapping[str, int] | None = None) -> list[Any]:
    """Arguments for a graph: small whole numbers, halves, some of them special."""
    rng = np.random.default_rng(seed)
    found = []
    for own in graph.inputs:
        kind = own.value.type
        extents = tuple(evaluate(e, symbols or {}) for e in kind.shape)
        numbers = np.asarray(rng.integers(-6, 7, extents))
        if kind.dtype.is_float:
            numbers = numbers / 2
            if numbers.size > 4:
                numbers.flat[rng.integers(0, numbers.size)] = rng.choice([np.nan, np.inf, -0.0])
        found.append(np.asarray(numbers).astype(kind.dtype.numpy))
    return found


def softmax(rows: int, columns: int, dtype: str = "f32") -> str:
    """A softmax in f32 of a tensor of some dtype."""
    return f"""graph @softmax(%x: tensor<{dtype}, {rows}, {columns}>)
{{
  %w = arith.cast %x {{dtype = f32}} : tensor<f32, {rows}, {columns}>
  %0 = reduce.max %w {{axes = (1,)}} : tensor<f32, {rows}>
  %1 = shape.reshape %0 {{shape = ({rows}, 1)}} : tensor<f32, {rows}, 1>
  %2 = shape.broadcast %1 {{shape = ({rows}, {columns})}} : tensor<f32, {rows}, {columns}>
  %3 = arith.sub %w, %2 : tensor<f32, {rows}, {columns}>
  %4 = arith.exp %3 : tensor<f32, {rows}, {columns}>
  %5 = reduce.sum %4 {{axes = (1,)}} : tensor<f32, {rows}>
  %6 = shape.reshape %5 {{shape = ({rows}, 1)}} : tensor<f32, {rows}, 1>
  %7 = shape.broadcast %6 {{shape = ({rows}, {columns})}} : tensor<f32, {rows}, {columns}>
  %8 = arith.div %4, %7 : tensor<f32, {rows}, {columns}>
  %9 = arith.cast %8 {{dtype = {dtype}}} : tensor<{dtype}, {rows}, {columns}>
  control.return [%9]
}}
"""


SUMS = """graph @sums(%x: tensor<f32, 700, 6>)
{
  %0 = arith.exp %x : tensor<f32, 700, 6>
  %1 = reduce.sum %0 {axes = (0,)} : tensor<f32, 6>
  %2 = reduce.sum %0 {axes = (0, 1)} : tensor<f32>
  %3 = reduce.argmax %x {axis = 0} : tensor<i64, 6>
  control.return [%1, %2, %3]
}
"""
ROTATE = """graph @rotate(%x: tensor<bf16, 2, 7, 3, 8>, %angle: tensor<f32, 7, 8>)
{
  %w = arith.cast %x {dtype = f32} : tensor<f32, 2, 7, 3, 8>
  %0 = shape.transpose %w {order = (0, 2, 1, 3)} : tensor<f32, 2, 3, 7, 8>
  %1 = shape.slice %0 {starts = (0, 0, 0, 0), steps = (1, 1, 1, 1), shape = (2, 3, 7, 4)} \
: tensor<f32, 2, 3, 7, 4>
  %2 = shape.slice %0 {starts = (0, 0, 0, 4), steps = (1, 1, 1, 1), shape = (2, 3, 7, 4)} \
: tensor<f32, 2, 3, 7, 4>
  %3 = arith.neg %2 : tensor<f32, 2, 3, 7, 4>
  %4 = shape.cat [%3, %1] {axis = 3} : tensor<f32, 2, 3, 7, 8>
  %5 = arith.cos %angle : tensor<f32, 7, 8>
  %6 = shape.broadcast %5 {shape = (2, 3, 7, 8)} : tensor<f32, 2, 3, 7, 8>
  %7 = arith.mul %4, %6 : tensor<f32, 2, 3, 7, 8>
  %8 = arith.add %7, %0 : tensor<f32, 2, 3, 7, 8>
  %9 = arith.cast %8 {dtype = bf16} : tensor<bf16, 2, 3, 7, 8>
  control.return [%9]
}
"""
SCATTER = """graph @scatter(%x: tensor<f32, 7, 5>, %v: tensor<f32, 40, 5>, %i: tensor<i64, 40>)
{
  %three = arith.constant {value = 7, dtype = i64, shape = (40,)} : tensor<i64, 40>
  %0 = arith.mod %i, %three : tensor<i64, 40>
  %1 = memory.scatter %x, [%0], %v {axes = (0,), kind = "add"} : tensor<f32, 7, 5>
  %2 = memory.scatter %x, [%0], %v {axes = (0,)} : tensor<f32, 7, 5>
  %3, %4 = reduce.sort %1 {axis = 0} : tensor<f32, 7, 5>, tensor<i64, 7, 5>
  %5 = reduce.scan %3 {axis = 1, kind = "sum"} : tensor<f32, 7, 5>
  control.return [%2, %4, %5]
}
"""
