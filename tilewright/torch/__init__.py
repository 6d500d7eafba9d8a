"""PyTorch operators that run tuned schedules, and torch's own kernels on shapes never tuned.

import tilewright.torch as tw
tw.use("winners/")              # what `tilewright export --job JOB --out winners/` wrote; or a server's URL
y = tw.linear(x, weight, bias)  # tuned where the shape was, torch otherwise; tw.counts() tells
"""

from tilewright.torch.operators import attention, linear, matmul
from tilewright.torch.table import Counts, clear, counts, use

__all__ = ["Counts", "attention", "clear", "counts", "linear", "matmul", "use"]
