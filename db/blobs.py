"""Bytes: artifacts by content, and trained cost models."""

import hashlib
from typing import Protocol

from sqlalchemy.orm import Session

from db.errors import StoreDamaged
from db.tables_served import ArtifactRow, CostModelRow
from tuner.views import NotFound


class ArtifactStore(Protocol):
    """Where built code is kept. A folder or a bucket can stand in for the table; `put` comes before the rows that
    name the digest are committed."""

    def put(self, session: Session, digest: str, data: bytes, now: float) -> None:
        """ValueError when `digest` is not the SHA-256 of `data`. Putting the same bytes again changes nothing."""

    def get(self, session: Session, digest: str) -> bytes:
        """NotFound for a digest that is not stored, StoreDamaged where the bytes are no longer those put there."""


class ArtifactTable:
    """Artifacts in the database itself: one thing to back up, and a schedule never points at nothing."""

    def put(self, session: Session, digest: str, data: bytes, now: float) -> None:
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"the artifact's bytes do not hash to {digest}")
        # Locked where it is there: its removal (db.retention) then sees the schedule that is about to name it.
        if session.get(ArtifactRow, digest, with_for_update=True) is None:
            session.add(ArtifactRow(digest=digest, data=data, created_at=now))
            session.flush()

    def get(self, session: Session, digest: str) -> bytes:
        row = session.get(ArtifactRow, digest)
        if row is None or row.data is None:
            raise NotFound(f"no artifact {digest}")
        if hashlib.sha256(row.data).hexdigest() != digest:
            raise StoreDamaged(f"artifact {digest} is damaged in the database: restore a backup or tune again")
        return row.data


def save_model(session: Session, op: str, target_kind: str, blob: bytes, feature_version: str, now: float) -> None:
    row = CostModelRow(op=op, target_kind=target_kind, blob=blob, feature_version=feature_version, saved_at=now)
    session.merge(row)


def load_model(session: Session, op: str, target_kind: str) -> tuple[bytes, str] | None:
    """(blob, feature version). Whether the blob is sound is for the cost model to find: it starts cold where not."""
    row = session.get(CostModelRow, (op, target_kind))
    return None if row is None else (row.blob, row.feature_version)
