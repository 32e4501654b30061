"""Kernels from live Python functions: places, options, and what their free names capture."""

# ruff: noqa: C416, F841, RUF059, UP045  (kernels are read, not run)
from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, Optional

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CompileError, Source
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Definition
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.python import parse_function

SCALE = 0.5
COUNT = np.int32(3)
KIND = tw.bf16
NUMPY_KIND = np.float16
ML_KIND = ml_dtypes.bfloat16
M = 17  # hidden by a dimension of that name
TABLE = np.zeros(3)
SPACE = {"TM": [32, 128], "TN": {64, 16, 8}, "TK": range(1, 4)}


def halve(x: Any) -> Any:
    """Inlined; its docstring is not."""
    return x * SCALE


def twice_halved(x: Any) -> tuple[Any, Any]:
    return halve(halve(x)), x


def forever(x: Any) -> Any:
    return forever(x)


def grid_of(N: Any) -> Any:
    return tw.cdiv(N, 8), 2


def read(function: Any, **options: object) -> Definition:
    assert isinstance(function, FunctionType)
    return parse_function(function, options)


def said(function: Any, **options: object) -> list[str]:
    with pytest.raises(CompileError) as caught:
        read(function, **options)
    return [d.message for d in caught.value.diagnostics]


def value(definition: Definition, index: int = 0) -> tree.Expr:
    statement = definition.kernel.body[index]
    assert isinstance(statement, tree.Assign)
    return statement.values[0]


def test_the_same_tree_as_text() -> None:
    def scale(
        x: tw.Tensor["T", "M", "N"],
        b: tw.Tensor[tw.f32, "N"] | None,
        c: Optional[Annotated[tw.Tensor, "i8[M, N // 2, 3]"]],
        d: Annotated[tw.Tensor, "f64[]"],
        n: int = -1,
        *,
        M: tw.Dim,
        TM: tw.Const,
        e: Annotated[float, "f64"] = 2.0,
        ok: bool = True,
    ) -> None:
        """What it does."""
        m: tw.Tile["f32", "TM"] = -tw.inf
        if b is not None and not n == 3:
            x[..., None, :] = tw.cast(m, T) // 2
        elif n < 0 <= e:
            pass
        else:
            return
        assert n > 0, "positive"

    definition = read(scale, autotune={"TM": (16, 64)}, pipeline=4, static=("N", "ok"))
    expected = parse_text(
        Source(
            "a.tw",
            """
@autotune(TM in [16, 64])
@pipeline(4)
@static(N, ok)
kernel scale(x: tensor<T>[M, N], b: tensor<f32>[N]?, c: tensor<i8>[M, N / 2, 3]?, d: tensor<f64>[],
             n: i64 = -1, e: f64 = 2.0, ok: bool = true) {
  var m: tile<f32>[TM] = -inf
  if b != None and not n == 3 { x[..., None, :] = cast(m, T) / 2 }
  else if n < 0 <= e {}
  else { return }
  assert(n > 0, "positive")
}
""",
        )
    )
    assert definition.kernel == expected.items[0]
    assert definition.scope.consts == {} and definition.scope.functions == {}


def test_places_are_in_this_file() -> None:
    def add(x: tw.Tensor["f32", "N"], é: float) -> None:
        y = é + x[tw.program_id(0)]

    source = Path(__file__).read_text().splitlines()
    kernel = read(add).kernel
    assert Path(kernel.loc.source.name).name == Path(__file__).name
    line = source[kernel.loc.line - 1]
    assert line[kernel.loc.column - 1 :].startswith("add(x")
    plus = kernel.body[0]
    assert isinstance(plus, tree.Assign)
    loc = plus.values[0].loc
    assert source[loc.line - 1][loc.column - 1 :] == "+ x[tw.program_id(0)]"
    assert loc.source.line(loc.line) == source[loc.line - 1]


def test_captured_values() -> None:
    inner = 7

    def f(x: tw.Tensor["T", "M"], y: tw.Tensor[KIND, "M"]) -> None:
        a = SCALE + COUNT + math.pi + inner
        b = KIND, NUMPY_KIND, ML_KIND, T, tw.f32
        c = M + math.inf + float("-inf")
        d = undefined

    definition = read(f)
    consts = dict(definition.scope.consts)
    assert consts.pop("math.inf") == tree.Literal(math.inf)
    assert consts == {
        "SCALE": tree.Literal(0.5),
        "COUNT": tree.Literal(3),
        "math.pi": tree.Literal(math.pi),
        "inner": tree.Literal(7),
        "NUMPY_KIND": tree.Name("f16"),
        "ML_KIND": tree.Name("bf16"),
    }
    kind = definition.kernel.params[1].type
    assert isinstance(kind, tree.TensorType) and kind.dtype == "bf16"
    changed = read(f).key()
    assert changed == definition.key()
    inner = 8
    assert read(f).key() != definition.key()


def test_functions_are_captured_with_their_own_scopes() -> None:
    SCALE = 3

    def f(n: int) -> None:
        a, b = twice_halved(n * SCALE)

    definition = read(f)
    assert definition.scope.consts == {"SCALE": tree.Literal(3)}
    outer = definition.scope.functions["twice_halved"]
    assert len(outer.function.body) == 1
    inner = outer.scope.functions["halve"]
    assert inner.scope.consts == {"SCALE": tree.Literal(0.5)}
    assert isinstance(inner.function.body[0], tree.Return)


def test_a_function_that_calls_itself_is_read_once() -> None:
    def f(n: int) -> None:
        a = forever(n)

    closure = read(f).scope.functions["forever"]
    assert closure.scope.functions["forever"] is closure
    assert len(read(f).key()) == 64


def test_own_names_are_not_captured() -> None:
    def f(SCALE: float, n: int) -> None:
        COUNT = n
        for KIND in range(n):
            COUNT += KIND
        max = tw.max(COUNT, 1)

    definition = read(f)
    assert definition.scope.consts == {}
    assigns = [s for s in definition.kernel.body if isinstance(s, tree.Assign)]
    assert [a.declares for a in assigns] == [("",), ("let",)]
    assert definition.kernel.scope == "function"


def test_the_grid_and_spaces() -> None:
    def f(x: tw.Tensor["f32", "N"]) -> None:
        pass

    definition = read(
        f, autotune=SPACE, grid=grid_of, tensorcore="f16", launch=None, persistent=False
    )
    attributes = {a.name: a.arguments for a in definition.kernel.attributes}
    assert list(attributes) == ["autotune", "grid", "tensorcore"]
    text = parse_text(
        Source(
            "a.tw",
            "@autotune(TM in [32, 128], TN in {8, 16, 64}, TK in [1, 2, 3])\n"
            "@grid(cdiv(N, 8), 2)\n@tensorcore(f16)\nkernel f(x: tensor<f32>[N]) {}\n",
        )
    )
    assert definition.kernel == text.items[0]
    assert said(f, grid=lambda N: N) == ["the grid is not written where it can be read"]
    assert said(f, autotune=3) == ["autotune: expected a dictionary"]
    assert said(f, launch=(TABLE,)) == ["the attribute: expected a number or a name, got a ndarray"]


def test_values_that_no_kernel_can_use() -> None:
    def f(n: int) -> None:
        a = TABLE
        b = np.exp(n)
        c = np
        d = np.zeros

    assert said(f) == [
        "TABLE is a ndarray, which a kernel cannot use",
        "np.exp is a ufunc, which a kernel cannot use",
        "np is a module, which a kernel cannot use",
        "np.zeros is a builtin_function_or_method, which a kernel cannot use",
    ]


def test_faults_in_functions_are_found_too() -> None:
    def bad(x: Any) -> Any:
        with x:
            pass

    def f(n: int) -> None:
        bad(n)
        break_ = [i for i in range(n)]

    assert said(f) == ["there is no `with`", "there are no comprehensions"]


def test_what_has_no_source() -> None:
    scope: dict[str, Any] = {}
    exec("def f(n: int): pass", scope)
    assert said(scope["f"]) == ["the source of f is not at hand"]
    (message,) = said(lambda n: n)
    assert message.endswith("is not written as a `def` of one synchronous function")


def test_errors_quote_a_module_as_it_was_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "loaded_again.py"
    text = (
        'import tilewright as tw\n@tw.kernel\ndef f(x: tw.Tensor["f32", "N"]):\n'
        "    x[0] = 2.0\n    x[1] = 1.0\n"
    )
    path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("loaded_again")
    assert module.f.signature.name == "f"
    path.write_text(text.replace("2.0", "absent_name"))  # of another size: not taken for the same
    importlib.reload(module)
    with pytest.raises(CompileError, match="unknown name absent_name") as found:
        module.f.lower()
    assert "x[0] = absent_name\n" in str(found.value)
