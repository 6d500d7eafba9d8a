"""Alembic's entry: runs on the connection that `db.schema.migrate` (or a test) passes, inside its transaction."""

from alembic import context

import db.tables_served  # noqa: F401  defines the rest of the tables
from db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
