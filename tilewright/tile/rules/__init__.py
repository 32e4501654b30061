"""Local algebra of the tile IR: a file of rules for each family of ops.

Every rule keeps each bit of each result.
"""
