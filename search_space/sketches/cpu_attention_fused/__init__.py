"""Fused online-softmax attention for CPUs."""
