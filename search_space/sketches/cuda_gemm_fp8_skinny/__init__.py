"""float8_e4m3 GEMM for few rows of A: weights as wgmma's M operand, K split inside a cluster."""
