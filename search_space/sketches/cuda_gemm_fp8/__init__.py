"""float8_e4m3 GEMM: warp-specialised TMA + mbarrier + wgmma, scales per tensor or per block."""
