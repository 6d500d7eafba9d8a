"""Attention for short sequences: the scores of a query tile over all its keys at once."""
