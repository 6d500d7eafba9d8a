"""mma.sync m16n8k16 fed by cp.async and ldmatrix: every NVIDIA card from sm_80 on."""
