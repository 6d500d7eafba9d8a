"""Keys, fair shares, retention, counts; artifacts outside of the database

Revision: 0002, after 0001
"""
import sqlalchemy as sa
from alembic import op

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None

WAITING = sa.text('waiting')
WHOLE = sa.text('pruned_at IS NULL')


def upgrade() -> None:
    op.create_table('api_keys',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('digest', sa.String(length=64), nullable=False),
    sa.Column('scope', sa.String(length=16), nullable=False),
    sa.Column('requests_per_minute', sa.Integer(), nullable=True),
    sa.Column('open_jobs', sa.Integer(), nullable=True),
    sa.Column('open_trials', sa.Integer(), nullable=True),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('revoked_at', sa.Double(), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_api_keys')),
    sa.UniqueConstraint('digest', name=op.f('uq_api_keys_digest'))
    )
    op.create_table('tallies',
    sa.Column('source', sa.Text(), nullable=False),
    sa.Column('name', sa.String(length=40), nullable=False),
    sa.Column('label', sa.String(length=40), nullable=False),
    sa.Column('value', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('source', 'name', 'label', name=op.f('pk_tallies'))
    )
    # Added one by one, not by copying the table: SQLite's copy would drop what cascades from it.
    op.add_column('jobs', sa.Column('weight', sa.Double(), server_default=sa.text('1.0'), nullable=False))
    op.add_column('jobs', sa.Column('virtual_s', sa.Double(), server_default=sa.text('0.0'), nullable=False))
    op.add_column('jobs', sa.Column('charged_s', sa.Double(), server_default=sa.text('0.0'), nullable=False))
    op.add_column('jobs', sa.Column('key_id', sa.String(length=40), nullable=True))
    op.add_column('jobs', sa.Column('pruned_at', sa.Double(), nullable=True))
    op.execute(sa.text('UPDATE jobs SET charged_s = elapsed_s'))
    op.drop_index('ix_jobs_claim', 'jobs')
    op.create_index('ix_jobs_claim', 'jobs', ['claim_rank', 'virtual_s', 'created_at', 'id'], unique=False, sqlite_where=WAITING, postgresql_where=WAITING)
    op.create_index('ix_jobs_owner', 'jobs', ['key_id', 'state'], unique=False)
    op.create_index('ix_jobs_ended', 'jobs', ['finished_at', 'id'], unique=False, sqlite_where=WHOLE, postgresql_where=WHOLE)
    op.create_index('ix_schedules_task', 'schedules', ['task_id'], unique=False)
    op.create_index('ix_schedules_artifact', 'schedules', ['artifact'], unique=False)
    _allow_artifacts_elsewhere()


def _allow_artifacts_elsewhere() -> None:
    """SQLite cannot change a column, and a copy of the table under its name is refused while schedules point at it:
    a new column takes over."""
    if op.get_bind().dialect.name == 'postgresql':
        op.alter_column('artifacts', 'data', existing_type=sa.LargeBinary(), nullable=True)
        return
    op.execute(sa.text('ALTER TABLE artifacts RENAME COLUMN data TO data_0001'))
    op.add_column('artifacts', sa.Column('data', sa.LargeBinary(), nullable=True))
    op.execute(sa.text('UPDATE artifacts SET data = data_0001'))
    op.execute(sa.text('ALTER TABLE artifacts DROP COLUMN data_0001'))


def downgrade() -> None:
    op.drop_index('ix_schedules_artifact', 'schedules')
    op.drop_index('ix_schedules_task', 'schedules')
    op.drop_index('ix_jobs_ended', 'jobs')
    op.drop_index('ix_jobs_owner', 'jobs')
    op.drop_index('ix_jobs_claim', 'jobs')
    op.create_index('ix_jobs_claim', 'jobs', ['claim_rank', 'created_at', 'id'], unique=False, sqlite_where=WAITING, postgresql_where=WAITING)
    for name in ('pruned_at', 'key_id', 'charged_s', 'virtual_s', 'weight'):
        op.drop_column('jobs', name)
    op.drop_table('tallies')
    op.drop_table('api_keys')
