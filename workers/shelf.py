"""The artifacts that a session built: on disk, by content hash, until the session closes."""

import shutil
from pathlib import Path

from search_space.candidate import Candidate
from workers.build import BuildResult
from workers.scratch import make_scratch


class Shelf:
    def __init__(self, parent: Path) -> None:
        self._folder = make_scratch(parent, self)
        self._digests: dict[str, str] = {}  # candidate key -> digest

    def put(self, candidate: Candidate, built: BuildResult) -> str:
        """Keep what was built (its outcome is OK); returns the digest."""
        assert built.artifact is not None
        assert built.digest is not None
        (self._folder / built.digest).write_bytes(built.artifact)
        self._digests[candidate.key] = built.digest
        return built.digest

    def digest(self, name: str) -> str | None:
        """The digest of the candidate with that key, None when it was not built."""
        return self._digests.get(name)

    def read(self, digest: str) -> bytes:
        """KeyError for what is not on the shelf."""
        if digest not in self._digests.values():
            raise KeyError(digest)
        return (self._folder / digest).read_bytes()

    def artifact_of(self, candidate: Candidate) -> bytes:
        return self.read(self._digests[candidate.key])

    def close(self) -> None:
        self._digests.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
