"""Stream-K: the k iterations of all tiles dealt out evenly, partial sums in float32, added in a fixed order."""
