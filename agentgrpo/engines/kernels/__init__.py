"""What a CPU runs faster than the library's own kernels, and nothing else: exact, and each with its measured reason."""
