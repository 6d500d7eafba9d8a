"""A folder of artifacts by what they were built from, so that nothing is compiled twice."""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from tilewright.runtime import Artifact, ArtifactError


class BuildCache:
    """Safe for several processes: entries are written beside and renamed. Keeps successes only."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        """The artifact stored under `key`; a damaged entry is removed and counts as absent."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        try:
            Artifact.from_bytes(data)
        except ArtifactError:
            path.unlink(missing_ok=True)
            return None
        return data

    def put(self, key: str, artifact: bytes) -> None:
        """A full or read-only disk loses the entry, never the build."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, name = tempfile.mkstemp(dir=path.parent)
            try:
                with open(fd, "wb") as file:
                    file.write(artifact)
                os.replace(name, path)
            except OSError:
                os.unlink(name)

    def _path(self, key: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self.folder / digest[:2] / digest
