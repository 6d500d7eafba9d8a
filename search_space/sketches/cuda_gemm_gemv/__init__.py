"""Up to four rows of A: plain vector loads, float32 multiply-adds, any alignment."""
