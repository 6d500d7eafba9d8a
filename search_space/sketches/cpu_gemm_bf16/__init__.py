"""bfloat16 GEMM on the AVX512_BF16 dot product of pairs (vdpbf16ps): twice the float32 rate, float32 sums."""
