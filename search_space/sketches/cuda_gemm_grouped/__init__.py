"""Grouped GEMM (mixture of experts), contiguous or masked: one B for each group of rows of A."""
