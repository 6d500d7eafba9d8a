"""PyTorch operators that run tuned schedules, and torch's own kernels on shapes never tuned.

import tilewright.torch as tw
tw.use("winners/")              # what `tilewright export --job JOB --out winners/` wrote; or a server's URL
y = tw.linear(x, weight, bias)  # tuned where the shape was, torch otherwise; tw.counts() and tw.misses() tell
tw.submit_misses("http://...")  # has the service tune what was missed
"""

from tilewright.torch import library  # noqa: F401  registers the operators
from tilewright.torch.attention import attention
from tilewright.torch.fallback import NoFallback
from tilewright.torch.gemm import linear, matmul
from tilewright.torch.sources import ScheduleSkipped, clear, counts, misses, submit_misses, use
from tilewright.torch.tally import Counts, Miss

__all__ = [
    "Counts",
    "Miss",
    "NoFallback",
    "ScheduleSkipped",
    "attention",
    "clear",
    "counts",
    "linear",
    "matmul",
    "misses",
    "submit_misses",
    "use",
]
