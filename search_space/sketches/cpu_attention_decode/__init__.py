"""Attention of few query rows: K and V are read once, in place, by all heads that share them."""
