"""How often a key may ask: a token bucket per key, in this process."""

import math
from collections import OrderedDict
from collections.abc import Callable

from api.errors import TooManyRequests

MAX_BUCKETS = 10_000
BURST_S = 10.0  # a bucket holds what may be asked in this time, and at least MIN_BURST
MIN_BURST = 5.0


class RateLimiter:
    """Not thread-safe: for one event loop. Several processes of the service count each for itself."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> (tokens, when)

    def take(self, key_id: str, per_minute: int | None) -> None:
        """One request more; TooManyRequests, which says when to come back, where the bucket is empty."""
        if per_minute is None:
            return
        rate, now = per_minute / 60.0, self._now()
        size = max(rate * BURST_S, MIN_BURST)
        tokens, at = self._buckets.pop(key_id, (size, now))
        tokens = min(size, tokens + max(0.0, now - at) * rate)
        allowed = tokens >= 1.0
        self._buckets[key_id] = (tokens - 1.0 if allowed else tokens, now)
        while len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = max(1, math.ceil((1.0 - tokens) / rate))
            raise TooManyRequests(f"this key may send {per_minute} requests a minute", retry_after_s=wait)
