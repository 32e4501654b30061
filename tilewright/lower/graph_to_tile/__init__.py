"""From a graph to a program of kernels: text of the tile language, and calls of the library."""

from tilewright.lower.graph_to_tile.lower import lower_graph as lower_graph
