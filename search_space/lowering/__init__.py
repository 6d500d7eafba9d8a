"""What the `lower` modules share: tvm is allowed here and in `sketches/*/lower.py`, nowhere else in this room."""
