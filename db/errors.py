"""Faults of the store, named by what the caller can do next; StoreUnavailable (try later) is `tuner.ports`'s."""

from tuner.ports import StoreUnavailable


class StoreError(RuntimeError):
    """The database cannot be used as it is; a person has to act. The message says how."""


class StoreDamaged(StoreError):
    """A file, row or artifact is not what was written: restore it from a backup. Nothing was overwritten."""


class SchemaMismatch(StoreError):
    """The database has no schema, an older one, a newer one, or one that is not ours: migrate, or upgrade."""


__all__ = ["SchemaMismatch", "StoreDamaged", "StoreError", "StoreUnavailable"]
