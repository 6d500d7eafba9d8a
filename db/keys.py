"""API keys: made at random, kept as hashes, found by hash."""

import hashlib
import secrets
import uuid

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.mapping import clean
from db.tables import JobRow
from db.tables_served import KeyRow
from tuner.access import KeyLimits, KeyView, LimitReached, Owner, Scope
from tuner.job import FINAL, JobState
from tuner.views import NotFound

PREFIX = "tw_"  # lets a secret scanner know what it has found
_ENTROPY_BYTES = 32
_DOMAIN = b"tilewright api key, first form"
_OPEN = tuple(s.value for s in JobState if s not in FINAL)


def key_digest(key: str) -> str:
    """Keyed BLAKE2b-256 (RFC 7693). A quick hash is enough: a key holds 256 random bits, so there is nothing to
    guess through it, unlike a password, for which slow hashes are made; and it is taken at every request. The hash's
    own key only sets our hashes apart from others of the same text."""
    return hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=32, key=_DOMAIN).hexdigest()


def create(session: Session, name: str, scope: Scope, limits: KeyLimits, now: float) -> tuple[KeyView, str]:
    """(what is kept of it, the key): the key is nowhere else, and never shown again."""
    key = PREFIX + secrets.token_urlsafe(_ENTROPY_BYTES)
    row = KeyRow(
        id=f"key_{uuid.uuid4().hex[:16]}",
        name=clean(name) or "",
        digest=key_digest(key),
        scope=scope.value,
        created_at=now,
        **vars(limits),
    )
    session.add(row)
    session.flush()
    return _view(row), key


def listed(session: Session) -> list[KeyView]:
    return [_view(row) for row in session.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.id))]


def any_made(session: Session) -> bool:
    """Whether a key was ever made, revoked ones too: a service is never opened by revoking its last key."""
    return session.scalar(select(KeyRow.id).limit(1)) is not None


def find(session: Session, key: str) -> KeyView | None:
    """The key's view, None for one that was never made or is revoked. The comparison is the index's, of hashes: what
    its time could tell is about a hash that nobody can steer."""
    row = session.scalars(select(KeyRow).where(KeyRow.digest == key_digest(key))).one_or_none()
    return None if row is None or row.revoked_at is not None else _view(row)


def by_id(session: Session, key_id: str) -> KeyView | None:
    row = session.get(KeyRow, key_id)
    return None if row is None or row.revoked_at is not None else _view(row)


def revoke(session: Session, key_id: str, now: float) -> KeyView:
    """For good; revoking again changes nothing."""
    row = session.scalars(select(KeyRow).where(KeyRow.id == key_id).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"no key {key_id}")
    if row.revoked_at is None:
        row.revoked_at = now
    return _view(row)


def check_room(session: Session, owner: Owner, trials: int) -> None:
    """LimitReached where one more job of `trials` would be more than the owner may have open. The key's row is locked:
    of two requests at once the second sees the first one's job."""
    limits = owner.limits
    if limits.open_jobs is None and limits.open_trials is None:
        return
    session.execute(select(KeyRow.id).where(KeyRow.id == owner.key_id).with_for_update())
    left = func.coalesce(func.sum(JobRow.max_trials - JobRow.trials_done), 0)
    jobs, open_trials = session.execute(
        select(func.count(), left).where(JobRow.key_id == owner.key_id, JobRow.state.in_(_OPEN))
    ).one()
    if limits.open_jobs is not None and jobs >= limits.open_jobs:
        raise LimitReached(f"this key has {jobs} open jobs, as many as it may")
    if limits.open_trials is not None and open_trials + trials > limits.open_trials:
        raise LimitReached(
            f"this key's open jobs may measure {limits.open_trials} trials together: "
            f"{open_trials} are open, {trials} more are asked for"
        )


def _view(row: KeyRow) -> KeyView:
    limits = KeyLimits(row.requests_per_minute, row.open_jobs, row.open_trials)
    return KeyView(row.id, row.name, Scope(row.scope), limits, row.created_at, row.revoked_at)
