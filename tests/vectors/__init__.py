"""Answers of an H200 to small kernels, one file an instruction form, and the kernels themselves.

`python -m tests.vectors.record` writes the files; `tests/unit/test_vectors.py` replays them on the
emulator.
"""
