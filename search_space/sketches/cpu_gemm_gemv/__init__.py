"""One row of A times B: dot products along k where B is transposed, streamed rows of B where it is not."""
