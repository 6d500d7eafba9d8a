"""What the service answers with about itself: its workers, the targets it knows, its health."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from api.schemas import Answer, TargetOut


class Worker(Answer):
    runner_id: str
    device_id: str
    target: TargetOut
    alive: bool
    healthy: bool
    detail: str
    last_seen_at: datetime


class Workers(Answer):
    items: list[Worker]


class TargetItem(Answer):
    target: TargetOut
    devices: int = Field(description="devices of this kind that runners report; 0: this host, no runner yet")
    alive: int
    ops: list[str]
    sketches: list[str]


class Targets(Answer):
    items: list[TargetItem]


class Check(Answer):
    ok: bool
    detail: str


class Health(Answer):
    status: Literal["live", "ready", "unavailable"]
    checks: dict[str, Check] = Field(default_factory=dict)
