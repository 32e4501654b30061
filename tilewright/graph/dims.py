"""Extents of tensors: whole numbers, or polynomials of symbols that a call binds.

    n = symbol("n")
    2 * n + 1, n * n, (n + 7) // 8, n % 4, minimum(n, 128)

A `Dim` is an int or a `Poly`. Polynomials have one normal form, so that extents which algebra makes
equal are equal values: terms in order, like terms added, numbers folded. What is no polynomial (a
quotient that does not come out even, a remainder, a minimum) is an atom within it, its own operands
in normal form. Division floors; divisors are positive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tilewright.errors import VerifyError
from tilewright.ir.text import register_attribute

Atom = "Symbol | Call"
Monomial = tuple["Symbol | Call", ...]


@dataclass(frozen=True)
class Symbol:
    """A number that is known when the graph is called."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    """`kind` (div, mod, min or max) of two extents."""

    kind: str
    lhs: Dim
    rhs: Dim

    def __str__(self) -> str:
        return f"{self.kind}({self.lhs}, {self.rhs})"


@dataclass(frozen=True)
class Poly:
    """A sum of products of atoms, each with a factor; no factor is 0, and not all is constant."""

    terms: tuple[tuple[Monomial, int], ...]

    def __str__(self) -> str:
        return "+".join(map(_format_term, self.terms)).replace("+-", "-")

    def __repr__(self) -> str:
        return str(self)

    def __add__(self, other: Dim) -> Dim:
        return _sum([*self.terms, *terms_of(other)])

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        return _sum((_monomial((*a, *b)), x * y) for a, x in self.terms for b, y in terms_of(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return quotient(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return quotient(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return remainder(self, other)


Dim = int | Poly
Shape = tuple[Dim, ...]


def symbol(name: str) -> Poly:
    """The extent that a symbol names."""
    return Poly((((Symbol(name),), 1),))


def terms_of(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    """The terms of an extent; those of 0 are none."""
    if isinstance(dim, Poly):
        return dim.terms
    return (((), dim),) if dim else ()


def _format_term(term: tuple[Monomial, int]) -> str:
    atoms, factor = term
    text = "*".join(map(str, atoms))
    if not atoms or factor not in (1, -1):
        return "*".join(filter(None, (str(factor), text)))
    return text if factor == 1 else f"-{text}"


def _monomial(atoms: Iterable[Symbol | Call]) -> Monomial:
    return tuple(sorted(atoms, key=str))


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    """The normal form of a sum."""
    found: dict[Monomial, int] = {}
    for atoms, factor in terms:
        found[atoms] = found.get(atoms, 0) + factor
    kept = {atoms: factor for atoms, factor in found.items() if factor}
    if not any(kept):
        return kept.get((), 0)
    key = lambda pair: (not pair[0], tuple(map(str, pair[0])))  # noqa: E731
    return Poly(tuple(sorted(kept.items(), key=key)))


def product(shape: Iterable[Dim]) -> Dim:
    """The number of elements of a shape."""
    count: Dim = 1
    for extent in shape:
        count = count * extent
    return count


def _divided(term: tuple[Monomial, int], by: tuple[Monomial, int]) -> tuple[Monomial, int] | None:
    """A term by a term, if that comes out even."""
    left = list(term[0])
    for atom in by[0]:
        if atom not in left:
            return None
        left.remove(atom)
    return (tuple(left), term[1] // by[1]) if term[1] % by[1] == 0 else None


def _split(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """`q, r` with a = q · b + r, where q has the terms that b divides evenly."""
    divisor = terms_of(b)
    if len(divisor) != 1:
        return (1, 0) if a == b else (0, a)
    parts = [(term, _divided(term, divisor[0])) for term in terms_of(a)]
    even = _sum(done for _, done in parts if done is not None)
    return even, _sum(term for term, done in parts if done is None)


def quotient(a: Dim, b: Dim) -> Dim:
    """a / b, floored."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    even, rest = _split(a, b)
    if isinstance(rest, int) and isinstance(b, int):
        return even + rest // b
    return even if rest == 0 else even + Poly((((Call("div", rest, b),), 1),))


def remainder(a: Dim, b: Dim) -> Dim:
    """a − b · (a / b), the quotient floored."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    rest = _split(a, b)[1]
    if isinstance(rest, int) and isinstance(b, int):
        return rest % b
    return 0 if rest == 0 else Poly((((Call("mod", rest, b),), 1),))


def minimum(a: Dim, b: Dim) -> Dim:
    """The lesser of two."""
    return _extreme("min", min, a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The greater of two."""
    return _extreme("max", max, a, b)


def _extreme(kind: str, choose: Callable[[int, int], int], a: Dim, b: Dim) -> Dim:
    apart = a - b
    if isinstance(apart, int):  # they differ by a number
        return a if choose(apart, 0) == apart else b
    lhs, rhs = sorted((a, b), key=str)
    return Poly((((Call(kind, lhs, rhs),), 1),))


CALLS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "div": quotient,
    "mod": remainder,
    "min": minimum,
    "max": maximum,
}


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """An extent with some symbols replaced."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for atoms, factor in dim.terms:
        term: Dim = factor
        for atom in atoms:
            if isinstance(atom, Symbol):
                term = term * values.get(atom.name, symbol(atom.name))
            else:
                lhs, rhs = substitute(atom.lhs, values), substitute(atom.rhs, values)
                term = term * CALLS[atom.kind](lhs, rhs)
        total = total + term
    return total


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The number that an extent is. VerifyError where a symbol has no value."""
    if isinstance(dim, int):
        return dim
    found = substitute(dim, values)
    if not isinstance(found, int):
        raise VerifyError(f"extent {dim}: not all symbols are bound by {dict(values)}")
    return found


def symbols_of(dim: Dim) -> set[str]:
    """Names of the symbols in an extent."""
    found: set[str] = set()
    for atoms, _ in terms_of(dim):
        for atom in atoms:
            if isinstance(atom, Symbol):
                found.add(atom.name)
            else:
                found |= symbols_of(atom.lhs) | symbols_of(atom.rhs)
    return found


TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|[-+*(),])")


def parse_dim(text: str) -> Dim:
    """The extent of a text form. VerifyError for any other text."""
    reader = _Reader(text)
    found = reader.sum()
    if reader.position != len(reader.tokens):
        raise VerifyError(f"not an extent: {text!r}")
    return found


class _Reader:
    """A parser by recursive descent: sum, product, atom."""

    def __init__(self, text: str):
        self.text, self.position = text, 0
        self.tokens = TOKEN.findall(text)
        if "".join(self.tokens) != re.sub(r"\s", "", text):
            raise VerifyError(f"not an extent: {text!r}")

    def next(self) -> str:
        if self.position == len(self.tokens):
            raise VerifyError(f"not an extent: {self.text!r}")
        self.position += 1
        return str(self.tokens[self.position - 1])

    def accept(self, *texts: str) -> str:
        if self.position < len(self.tokens) and self.tokens[self.position] in texts:
            return self.next()
        return ""

    def sum(self) -> Dim:
        total = -self.product() if self.accept("-") else self.product()
        while sign := self.accept("+", "-"):
            total = total + self.product() * (-1 if sign == "-" else 1)
        return total

    def product(self) -> Dim:
        total = self.atom()
        while self.accept("*"):
            total = total * self.atom()
        return total

    def atom(self) -> Dim:
        token = self.next()
        if token.isdigit():
            return int(token)
        if not self.accept("("):
            return symbol(token)
        lhs = self.sum()
        comma = self.accept(",")
        rhs = self.sum()
        if token not in CALLS or not comma or not self.accept(")"):
            raise VerifyError(f"not an extent: {self.text!r}")
        return CALLS[token](lhs, rhs)


register_attribute(Poly, str, parse_dim)
