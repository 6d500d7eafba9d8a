"""k divided inside a cluster: float32 sums through distributed shared memory, added in rank order."""
