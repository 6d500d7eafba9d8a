"""`tilewright doctor`: what this machine can tune, and what is missing."""

import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from api.defaults import default_database_url, visible_gpus
from api.wiring import build_store
from tilewright.cli.connect import AsJson, Db
from tilewright.cli.errors import FAILED, print_json, shown

if TYPE_CHECKING:
    from workers.gpu_host import Gpu

PACKAGES = ("apache-tvm", "apache-tvm-ffi", "torch", "xgboost-cpu", "ray", "sqlalchemy", "fastapi")


@dataclass(frozen=True)
class Finding:
    """`state`: ok, missing (something will not work) or absent (an optional part is not there)."""

    name: str
    state: str
    detail: str


@shown
def doctor(db: Db = None, as_json: AsJson = False) -> None:
    """Say what this machine can tune, and what is missing for the rest."""
    findings = [f for check in CHECKS for f in check()] + [_database(db)]
    if as_json:
        print_json({"ok": _all_well(findings), "findings": [asdict(f) for f in findings]})
    else:
        table = Table("part", "state", "detail")
        for f in findings:
            table.add_row(f.name, f.state, f.detail)
        Console().print(table)
    raise SystemExit(0 if _all_well(findings) else FAILED)


def _all_well(findings: list[Finding]) -> bool:
    return all(f.state != "missing" for f in findings)


def _python() -> list[Finding]:
    good = (3, 11) <= sys.version_info[:2] <= (3, 12)
    return [Finding("python", "ok" if good else "missing", f"{platform.python_version()} (3.11 or 3.12 is needed)")]


def _packages() -> list[Finding]:
    out = []
    for name in PACKAGES:
        try:
            out.append(Finding(name, "ok", importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            out.append(Finding(name, "missing", "install the project's lock: make install"))
    return out


def _compiler() -> list[Finding]:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found:
        return [Finding("C compiler", "ok", found)]
    return [Finding("C compiler", "missing", "CPU schedules cannot be linked: apt-get install -y gcc libc6-dev")]


def _host() -> list[Finding]:
    from workers.host import host_target

    target = host_target()
    vectors = f"{target.vector_bits}-bit vectors, {', '.join(target.features) or 'no vector extension'}"
    return [Finding("cpu", "ok", f"{target.model} ({target.arch}), {target.cores} cores, {vectors}")]


def _gpu() -> list[Finding]:
    from workers.gpu_host import find_gpus

    gpus = find_gpus(visible_gpus())
    if not gpus:
        mask = "" if visible_gpus() is None else f" under CUDA_VISIBLE_DEVICES={visible_gpus()!r}"
        return [Finding("gpu", "absent", f"no CUDA driver, or no device{mask}: only CPU jobs can run here")]
    listed = "; ".join(
        f"{g.uuid} {g.model} ({g.arch}, {g.multiprocessors} SMs, {g.memory_bytes >> 30} GiB)" for g in gpus
    )
    return [Finding("gpu", "ok", f"{listed}; driver {gpus[0].driver}, CUDA {gpus[0].cuda}"), _nvcc(), *_sensors(gpus)]


def _nvcc() -> Finding:
    from workers.build import BuildToolMissing
    from workers.build.cuda import compiler_version, find_nvcc

    try:
        return Finding("nvcc", "ok", f"{find_nvcc()} ({compiler_version()})")
    except BuildToolMissing as fault:
        return Finding("nvcc", "missing", str(fault))


def _sensors(gpus: Sequence["Gpu"]) -> list[Finding]:
    from workers.gpu_sensors import Sensors

    reasons = {why for gpu in gpus if (why := Sensors(gpu.uuid).why_not) is not None}
    return [Finding("nvml", "absent", f"no clocks or power are recorded: {why}") for why in sorted(reasons)]


def _database(db: str | None) -> Finding:
    url = db or default_database_url()
    try:
        store = build_store(url)
    except Exception as fault:  # noqa: BLE001  whatever is wrong with it is the finding
        return Finding("database", "missing", str(fault))
    try:
        store.ping()
        return Finding("database", "ok", url.rpartition("@")[2])
    except Exception as fault:  # noqa: BLE001
        return Finding("database", "absent", f"{fault} (tilewright serve makes it)")
    finally:
        store.close()


CHECKS: tuple[Callable[[], list[Finding]], ...] = (_python, _packages, _compiler, _host, _gpu)


def add(app: typer.Typer) -> None:
    """Entry point of the group tilewright.commands."""
    app.command("doctor")(doctor)
