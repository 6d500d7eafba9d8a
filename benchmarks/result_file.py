"""The result files of docs/results/: written by the benchmark itself, never by hand."""

import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from search_space.environment import EnvironmentIdentity

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


@dataclass
class ResultFile:
    """One `docs/results/NAME.json`, in the form that docs/design.md gives ("Result files")."""

    name: str
    protocol: str
    environment: Mapping[str, object]
    rows: list[Mapping[str, object]] = field(default_factory=list)
    tables: dict[str, object] = field(default_factory=dict)
    summary: dict[str, object] = field(default_factory=dict)
    commit: str | None = None  # of the checkout measured, where git is not there to say it
    command: str | None = None  # where it took more than the command that writes the file

    def resume(self, folder: Path = RESULTS) -> None:
        """Take over the rows and tables of the file that is there; what made it stays listed under `earlier_runs`.
        FileNotFoundError when there is none, ValueError when it holds for another device or other versions."""
        path = folder / f"{self.name}.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        for key in ("device", "arch", "cores", "torch", "tvm"):
            if found["environment"].get(key) != self.environment.get(key):
                raise ValueError(f"{path}: measured with another {key}: {found['environment'].get(key)}")
        self.rows, self.tables, self.summary = found["rows"], found["tables"], found["summary"]
        made = {key: found[key] for key in ("command", "date", "commit")}
        self.tables["earlier_runs"] = [*found["tables"].get("earlier_runs", []), made]

    def write(self, folder: Path = RESULTS) -> Path:
        """Write what is there so far (a long benchmark writes after each row); returns the path."""
        document = {
            "command": self.command or command_line(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": self.commit or commit(),
            "environment": dict(self.environment),
            "protocol": self.protocol,
            "rows": self.rows,
            "tables": self.tables,
            "summary": self.summary,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return path


def command_line() -> str:
    """The command as a user of the checkout would type it."""
    main = sys.modules["__main__"].__spec__
    name = main.name.removesuffix(".__main__") if main is not None else Path(sys.argv[0]).name
    return " ".join(["python", "-m", name, *sys.argv[1:]])


def commit() -> str:
    """The commit measured; "+changes" where the checkout differs from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = [line for line in git("status", "--porcelain", "-uno").splitlines() if "docs/results/" not in line]
    return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")


def versions(packages: Sequence[str]) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in packages}


def gpu_environment(identity: EnvironmentIdentity, cpu: str, cores: int) -> dict[str, object]:
    """What a GPU result holds for; `cpu` and `cores` are those that the builders ran on."""
    return {
        "device": identity.model,
        "arch": identity.arch,
        "driver": identity.driver,
        "cuda": identity.cuda,
        "compiler": identity.compiler,
        "cpu": cpu,
        "cores": cores,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "tvm": importlib.metadata.version("apache-tvm"),
        **versions(["xgboost-cpu", "ray"]),
    }


def cpu_environment(model: str, arch: str, cores: int) -> dict[str, object]:
    """What a CPU result holds for."""
    return {
        "device": model,
        "cpu": model,
        "arch": arch,
        "cores": cores,
        "driver": None,
        "cuda": None,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "tvm": importlib.metadata.version("apache-tvm"),
        **versions(["xgboost-cpu", "ray"]),
    }
