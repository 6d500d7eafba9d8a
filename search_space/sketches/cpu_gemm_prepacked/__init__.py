"""Register-tiled GEMM for constant weights: B is packed once, ahead of the calls."""
