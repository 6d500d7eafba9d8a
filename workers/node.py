"""Joins this host to a Ray cluster with its devices, so that measuring actors can be placed here."""

import json
import os
import socket
import sys
from collections.abc import Sequence

from workers.host_devices import RESOURCE


def node_command(address: str, devices: Sequence[str], cores: int | None = None) -> list[str]:
    """The command that runs a Ray node here until it is stopped: `cores` CPUs for builders, one unit a device."""
    resources = {RESOURCE + device_id: 1 for device_id in devices}
    return [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        f"--address={address}",
        f"--num-cpus={cores or len(os.sched_getaffinity(0))}",
        f"--resources={json.dumps(resources)}",
        "--disable-usage-stats",
        "--block",
    ]


def own_address() -> str:
    """The address that Ray's head takes as its own: the one this host would send from (nothing is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
