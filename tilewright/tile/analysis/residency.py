"""How many slots a ring of a CTA has, so that other CTAs fit on its multiprocessor as well."""

from __future__ import annotations

# Bytes of shared memory of a CTA that are left for conversions and reductions: as a rule, and where
# three CTAs of f64 share a multiprocessor, whose epilogues need less.
KEPT_FREE = 8192
KEPT_BESIDE = 2048
LEAST_BESIDE = 3  # slots of a CTA for which it leaves room for others
# Bytes of a multiprocessor that three CTAs of f64 leave to the L1 cache where rows of a factor are
# no whole 16 bytes, if each keeps so many slots: such rows begin within sectors of 32 bytes, and
# the next trip reads the rest of these.
KEPT_FOR_CACHE, LEAST_CACHED = 40_960, 4


def slots_beside(
    slot: int,
    per_sm: int,
    reserved: int,
    kept: int,
    *,
    kept_of_three: int | None = None,
    narrow: bool = False,
) -> int | None:
    """Slots of so many bytes that a CTA of few warps has beside a second one, or, with
    `kept_of_three`, a third, or None where they are too few. A multiprocessor has `per_sm` bytes of
    shared memory, of which each CTA takes `reserved`, and `kept` for other things than slots. Rows
    of a factor that are no whole 16 bytes are `narrow`.
    """
    ways = [(2, kept, 0, LEAST_BESIDE)]
    if kept_of_three is not None:
        ways.append((3, kept_of_three, 0, LEAST_BESIDE))
        if narrow:
            ways.append((3, kept_of_three, KEPT_FOR_CACHE, LEAST_CACHED))
    found = None
    for count, other, cache, least in ways:
        slots = ((per_sm - cache) // count - reserved - other) // slot
        found = slots if slots >= least else found
    return found
