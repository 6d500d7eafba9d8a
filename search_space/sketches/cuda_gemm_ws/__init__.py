"""Warp-specialised TMA + mbarrier + wgmma GEMM, persistent, with cluster multicast."""
