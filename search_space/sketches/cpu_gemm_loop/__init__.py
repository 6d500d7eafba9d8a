"""Scalar GEMM: legal for every shape, layout and dtype; what is left when a shape has no vectors."""
