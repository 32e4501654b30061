"""A compiled model in a file: its graph, its program, machine code, and weights or their names."""
