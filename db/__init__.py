"""Remembers: jobs, trials, schedules, devices, over SQLite or PostgreSQL. Loads no tvm, ray, torch or fastapi."""

from db.bulk import FinishedTask, FinishedTrial
from db.errors import SchemaMismatch, StoreDamaged, StoreError, StoreUnavailable
from db.factory import open_store
from db.schema import migrate
from db.store import SqlStore

__all__ = [
    "FinishedTask",
    "FinishedTrial",
    "SchemaMismatch",
    "SqlStore",
    "StoreDamaged",
    "StoreError",
    "StoreUnavailable",
    "migrate",
    "open_store",
]
