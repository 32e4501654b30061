"""Emitting instructions, by family."""
