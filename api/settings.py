"""Everything the HTTP service can be told, made by the composition root; nothing here reads the environment."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from search_space.target import Target
from tuner.views import Keep


@dataclass(frozen=True)
class ApiSettings:
    """Sizes are bytes, periods seconds.

    `keys`: bearer keys of the key file, each with all rights. `keyed`: the database holds keys, so that one is asked
    for even without a key file. With neither, the service may listen on loopback only.
    `host_targets`: what this machine itself can tune, used to check a job before any runner has reported a device.
    `accept_unknown_targets`: take jobs for a device kind that no runner has reported (a cluster may join later).
    `keep_jobs_s`: ended jobs older than this are pruned, but for what `keep` names; None: for ever.
    `allowed_hosts`: names, besides the loopback's, that a keyless service answers to (DNS rebinding is refused).
    """

    keys: tuple[str, ...] = ()
    keyed: bool = False
    host_targets: tuple[Target, ...] = ()
    accept_unknown_targets: bool = False
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 4 * 2**20  # 4096 tasks of about 250 bytes, four times over
    max_json_depth: int = 16
    max_batch: int = 512
    event_poll_s: float = 0.4
    event_heartbeat_s: float = 15.0
    max_watchers: int = 1000
    lookup_flush_s: float = 1.0
    interrupt_expired_s: float = 5.0
    keep_jobs_s: float | None = None
    keep: Keep = field(default_factory=Keep)
    prune_s: float = 600.0
    session_s: float = 12 * 3600.0
    now: Callable[[], float] = time.time

    @property
    def is_keyed(self) -> bool:
        return bool(self.keys) or self.keyed
