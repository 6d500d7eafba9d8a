"""Register-tiled GEMM that packs B into panels inside the call: the compute-bound workhorse, for both layouts of B."""
