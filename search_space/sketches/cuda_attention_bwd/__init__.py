"""Backward attention for Hopper: a block a key tile, dK and dV in registers, dQ by float32 additions in memory."""
