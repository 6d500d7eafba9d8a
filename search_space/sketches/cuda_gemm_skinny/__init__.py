"""Weights as the wgmma M operand: small m, K split inside a cluster through distributed shared memory."""
