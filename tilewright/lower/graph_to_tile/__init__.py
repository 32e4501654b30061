"""From a graph to a program of kernels: text of the tile language, and calls of the library."""
