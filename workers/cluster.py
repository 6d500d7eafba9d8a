"""What is in the Ray cluster at this moment: hosts and devices. Every fault of Ray's becomes MeasurerUnavailable."""

from typing import Any

import ray

from tuner.ports import MeasurerUnavailable
from workers.host_devices import RESOURCE


def device_names() -> list[str]:
    """The devices of all living hosts, in order of their names. Raises MeasurerUnavailable."""
    names = {r.removeprefix(RESOURCE) for node in nodes() for r in node["Resources"] if r.startswith(RESOURCE)}
    return sorted(names)


def nodes() -> list[dict[str, Any]]:
    """The living hosts as Ray describes them. Raises MeasurerUnavailable."""
    try:
        return [node for node in ray.nodes() if node["Alive"]]
    except Exception as fault:  # Ray's own errors, gRPC's and plain ones, by what broke and when
        raise MeasurerUnavailable(f"the Ray cluster does not answer: {type(fault).__name__}: {fault}") from fault


def node_cores(node_id: str) -> int:
    """The CPUs that the host gave to builders, at least 1. MeasurerUnavailable when it left."""
    for node in nodes():
        if node["NodeID"] == node_id:
            return max(1, int(node["Resources"].get("CPU", 1)))
    raise MeasurerUnavailable(f"the host {node_id[:8]} has left the cluster")
