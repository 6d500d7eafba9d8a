"""How a measurer is set up; the composition root fills it in, nothing here reads the environment."""

from dataclasses import dataclass
from pathlib import Path

from workers.gpu_host import Gpu
from workers.host import usable_cores
from workers.recorded import load_recorded
from workers.script import BadScript, Scenario, load_script

SPECS = ("ray", "scripted:FILE.json", "recorded:FILE")


@dataclass(frozen=True)
class MeasurerConfig:
    """`lock_dir` must be one for all measurers of a host; `cache_dir` keeps the measured roofs; `temp_dir` holds Ray's
    sockets (a short path: their names are limited to 107 bytes) and is made and removed by the measurer.

    `address` None starts a local Ray. `cores` are those that kernels run on and that builders share (0: all this
    process may use). `child_memory_bytes` limits the resident memory of one building or measuring child (0: four
    fifths of its own host's for real work, 768 MiB for a script). `scenario` answers in place of compiler and device.
    """

    cache_dir: Path
    lock_dir: Path
    temp_parent: Path
    address: str | None = None
    cores: int = 0
    builders: int = 0  # 0: one a core
    child_memory_bytes: int = 0
    object_store_bytes: int = 100 << 20
    namespace: str = "tilewright"
    scenario: Scenario | None = None
    peers: tuple[str, ...] = ()  # users' own kernels, module:function, that finals compare ours with
    gpus: tuple[Gpu, ...] = ()  # of this host, that the user lets us use (a local Ray offers them)
    start_timeout_s: float = 120.0
    call_timeout_s: float = 60.0  # for an answer of an actor that has nothing to compute
    silent_after_s: float = 15.0  # a device whose actor has not answered for so long is not given work
    look_every_s: float = 300.0  # see workers.device.DeviceSettings
    look_again_s: float = 15.0
    holder_ttl_s: float = 20.0

    @property
    def builder_count(self) -> int:
        return self.builders or self.worker_cores

    @property
    def worker_cores(self) -> int:
        return self.cores or usable_cores()


def parse_measurer(spec: str) -> Scenario | None:
    """The scenario behind ``--measurer``: None for "ray" (measure for real). Raises BadScript, at server start."""
    kind, colon, path = spec.partition(":")
    if spec == "ray":
        return None
    if kind == "scripted" and colon and path:
        return load_script(Path(path))
    if kind == "recorded" and colon and path:
        return load_recorded(Path(path))
    raise BadScript(f"measurer {spec!r}: must be one of {', '.join(SPECS)}")
