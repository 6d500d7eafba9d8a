"""Code that several sketches' `lower` modules share. Imports tvm; only workers reach it."""
