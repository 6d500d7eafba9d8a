"""Few rows or columns and transposed B: vectors along k, both operands read in place and once."""
