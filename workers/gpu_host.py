"""The GPUs of this host, through the CUDA driver alone: neither torch nor tvm is loaded, and no context is made.

The driver itself applies CUDA_VISIBLE_DEVICES (indices in its own order, UUIDs and their prefixes, MIG), so that a mask
means here what it means to every other CUDA program. `find_gpus` asks in a short process: a light process should not
initialise the driver, which holds on to the mask of its first call.
"""

import ctypes
import functools
import json
import logging
import os
import re
import subprocess
import sys
import uuid
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from search_space.environment import EnvironmentIdentity
from search_space.target import Target
from tilewright.runtime import cuda_driver

_log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
PREFIX = "GPU-"
_ASK_TIMEOUT_S = 60.0
_ASK = "import json; from workers import gpu_host as g; print(json.dumps([g.asdict(x) for x in g.read_gpus()]))"
# CUdevice_attribute
_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR, _SHARED_OPTIN = 16, 38, 75, 76, 97
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: also what an empty mask gives
# From compute capability 9.0 on, wgmma and its successors exist in the architecture's own instruction set alone.
_SPECIFIC_SINCE = 9
_NAME_BYTES = 256


@dataclass(frozen=True)
class Gpu:
    """One device as the driver describes it; sizes in bytes. `uuid` is the physical device's (``GPU-...``)."""

    uuid: str
    model: str
    major: int
    minor: int
    multiprocessors: int
    shared_bytes: int  # one block may use, after asking for it
    l2_bytes: int
    memory_bytes: int
    driver: str
    cuda: str

    @property
    def arch(self) -> str:
        return f"sm_{self.major}{self.minor}" + ("a" if self.major >= _SPECIFIC_SINCE else "")

    def target(self) -> Target:
        return Target(
            kind="cuda",
            arch=self.arch,
            model=self.model,
            cores=self.multiprocessors,
            l2_bytes=self.l2_bytes,
            memory_bytes=self.memory_bytes,
            shared_bytes=self.shared_bytes,
        )

    def identity(self, compiler: str) -> EnvironmentIdentity:
        """What a measurement on it holds for; the measuring policy is filled in by who measures."""
        return EnvironmentIdentity(
            kind="cuda",
            model=self.model,
            arch=self.arch,
            cores=self.multiprocessors,
            driver=self.driver,
            cuda=self.cuda,
            tvm=metadata.version("apache-tvm"),
            compiler=compiler,
            policy="",
        )


@functools.cache
def find_gpus(visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that a process with CUDA_VISIBLE_DEVICES = `visible` sees (None: not set). Asked once a process.

    Empty where there is no driver or no device; a driver that fails otherwise is logged, since a machine without a
    GPU may have one half installed.
    """
    if visible is not None and not visible.strip():
        return ()
    try:
        cuda_driver.driver()  # loaded, not initialised
    except RuntimeError:
        return ()
    environment = {k: v for k, v in os.environ.items() if k != VISIBLE}
    if visible is not None:
        environment[VISIBLE] = visible
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-c", _ASK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        _log.warning("the CUDA driver did not answer within %g s: no GPU is used", _ASK_TIMEOUT_S)
        return ()
    if done.returncode:
        _log.warning("GPUs cannot be listed: %s", (done.stderr.strip().splitlines() or ["no message"])[-1])
        return ()
    return tuple(Gpu(**entry) for entry in json.loads(done.stdout.splitlines()[-1]))


def read_gpus() -> tuple[Gpu, ...]:
    """The devices that this process sees. Empty without a driver or device; CudaError when the driver fails."""
    try:
        driver = cuda_driver.driver()
    except RuntimeError:
        return ()
    code = driver.cuInit(0)
    if code == _NO_DEVICE:
        return ()
    cuda_driver.check("cuInit", code)
    count = ctypes.c_int()
    cuda_driver.check("cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(count)))
    return tuple(_read_gpu(driver, index) for index in range(count.value))


def _read_gpu(driver: Any, index: int) -> Gpu:
    device = ctypes.c_int()
    cuda_driver.check("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), index))
    name = ctypes.create_string_buffer(_NAME_BYTES)
    cuda_driver.check("cuDeviceGetName", driver.cuDeviceGetName(name, _NAME_BYTES, device))
    raw = (ctypes.c_ubyte * 16)()
    cuda_driver.check("cuDeviceGetUuid", driver.cuDeviceGetUuid_v2(ctypes.byref(raw), device))
    memory = ctypes.c_size_t()
    cuda_driver.check("cuDeviceTotalMem", driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device))

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        code = driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        cuda_driver.check(f"cuDeviceGetAttribute({number})", code)
        return value.value

    return Gpu(
        uuid=PREFIX + str(uuid.UUID(bytes=bytes(raw))),
        model=name.value.decode(errors="replace"),
        major=attribute(_MAJOR),
        minor=attribute(_MINOR),
        multiprocessors=attribute(_MULTIPROCESSORS),
        shared_bytes=attribute(_SHARED_OPTIN),
        l2_bytes=attribute(_L2_BYTES),
        memory_bytes=memory.value,
        driver=driver_version(),
        cuda=_cuda_version(driver),
    )


def _cuda_version(driver: Any) -> str:
    """The newest CUDA that the driver speaks: ``13.0``."""
    version = ctypes.c_int()
    cuda_driver.check("cuDriverGetVersion", driver.cuDriverGetVersion(ctypes.byref(version)))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def driver_version(proc: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Version of the kernel's driver (``580.159.04``), as the kernel module tells it; else what NVML says."""
    try:
        text = proc.read_text()
    except OSError:
        return _driver_by_nvml()
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found.group(1) if found else _driver_by_nvml()


def _driver_by_nvml() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as fault:  # noqa: BLE001  neither the package nor the library need be there
        _log.warning("the GPU driver's version is not known: %s", fault)
        return "unknown"


__all__ = ["PREFIX", "VISIBLE", "Gpu", "asdict", "driver_version", "find_gpus", "read_gpus"]
