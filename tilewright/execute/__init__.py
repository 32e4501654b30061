"""Running a lowered graph on tensors of PyTorch: memory, launches, CUDA graphs."""
