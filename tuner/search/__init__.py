"""Evolutionary search over the sketches of one task."""
