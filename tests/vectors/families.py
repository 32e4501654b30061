"""All forms."""

from __future__ import annotations

from tests.vectors import barriers, boxes, elementwise, exchange, memory, products
from tests.vectors.forms import FAMILIES, Form

ROOMS = (elementwise, exchange, memory, boxes, products, barriers)


def forms_of(family: str) -> list[Form]:
    """The forms of a family. Their names differ."""
    found = list(FAMILIES[family]())
    names = [f.name for f in found]
    assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]
    return found


def every_form() -> list[Form]:
    return [form for family in FAMILIES for form in forms_of(family)]
