"""Where things are by default. The one module that reads the environment."""

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

DEFAULT_PORT = 8400


@dataclass(frozen=True)
class Paths:
    """Folders of this user's service. `data` outlives everything; `cache` may be deleted at any time."""

    data: Path
    cache: Path

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.data / 'tilewright.db'}"


def default_paths() -> Paths:
    """TILEWRIGHT_DATA and TILEWRIGHT_CACHE, or the platform's folders for user data and cache."""
    data = os.environ.get("TILEWRIGHT_DATA") or platformdirs.user_data_dir("tilewright", appauthor=False)
    cache = os.environ.get("TILEWRIGHT_CACHE") or platformdirs.user_cache_dir("tilewright", appauthor=False)
    return Paths(Path(data), Path(cache))


def default_database_url() -> str:
    """TILEWRIGHT_DB, or the file TILEWRIGHT_DB_FILE names (a mounted secret), or SQLite in the data folder."""
    secret = os.environ.get("TILEWRIGHT_DB_FILE")
    if secret:
        return Path(secret).read_text(encoding="utf-8").strip()
    return os.environ.get("TILEWRIGHT_DB") or default_paths().database_url


def default_key_file() -> Path | None:
    """TILEWRIGHT_KEY_FILE: bearer keys, one a line."""
    path = os.environ.get("TILEWRIGHT_KEY_FILE")
    return Path(path) if path else None


def visible_gpus() -> str | None:
    """CUDA_VISIBLE_DEVICES: which of the host's GPUs may be used; None when it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")
