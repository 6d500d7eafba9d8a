"""What every Hopper (sm_90a) sketch shares without tvm: tile arithmetic, device limits, launch descriptions."""
