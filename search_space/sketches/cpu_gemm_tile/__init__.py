"""Register-tiled GEMM that reads B in place: no copy, for shapes where packing costs more than it saves."""
