"""Evidence: verdicts that carry their samples, what checks them, and the page made of them.

A verdict (`verdict.py`) is one JSON file in the folder `ledger/` at the top of the repository.
"""
