"""Forward attention for Hopper: TMA producer, K and V rings, wgmma with P in registers, online softmax."""
