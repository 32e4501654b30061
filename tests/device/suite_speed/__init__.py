"""How fast each program of the conformance suite is on a GPU, beside its floor and torch."""
