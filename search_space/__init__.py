"""What can be run: workloads, targets, knobs and sketches. No tvm outside a sketch's `lower` module."""
