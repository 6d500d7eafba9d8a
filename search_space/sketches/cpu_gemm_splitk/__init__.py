"""Register-tiled GEMM whose k blocks run in parallel: for few outputs and a long reduction."""
