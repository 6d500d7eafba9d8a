"""Decode attention for Hopper: few query rows, the keys dealt out over all blocks, K and V read once."""
