"""Any m, n, k: operands whose rows TMA cannot read are copied to padded rows first, inside the call."""
