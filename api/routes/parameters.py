"""Parameters that several routes take."""

from typing import Annotated

from fastapi import Path, Query

_ID = r"^[A-Za-z0-9_-]{1,64}$"

JobId = Annotated[str, Path(pattern=_ID, description="a job's id", examples=["job_1f0c2e"])]
ScheduleId = Annotated[str, Path(pattern=_ID, description="a schedule's id", examples=["sch_8a91"])]
TrialId = Annotated[int, Path(ge=1, le=2**63 - 1, description="a trial's id", examples=[4711])]
Limit = Annotated[int, Query(ge=1, le=500, description="items on a page")]
Cursor = Annotated[str | None, Query(min_length=1, max_length=500, description="`next_cursor` of the page before")]
TaskIndex = Annotated[int | None, Query(ge=0, le=4095, description="index of a task in its job")]
