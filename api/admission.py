"""Refusing at submit what could only fail later: a target nobody has, a workload no sketch can do there."""

from collections.abc import Mapping, Sequence

from api.settings import ApiSettings
from search_space.errors import InvalidField
from search_space.registry import check_supported
from search_space.target import Target, TargetQuery
from search_space.workload import Workload
from tuner.job import JobSpec
from tuner.views import DeviceView


def known_targets(devices: Sequence[DeviceView], settings: ApiSettings) -> tuple[Target, ...]:
    """Distinct targets that runners have reported; the host's own where none has reported that kind yet."""
    found = {d.target: None for d in devices}
    kinds = {t.kind for t in found}
    found.update({t: None for t in settings.host_targets if t.kind not in kinds})
    return tuple(found)


def admit(spec: JobSpec, body: Mapping[str, object], devices: Sequence[DeviceView], settings: ApiSettings) -> None:
    """InvalidField naming the target or the task's field when the job could never be done."""
    known = known_targets(devices, settings)
    matching = tuple(t for t in known if spec.target.matches(t))
    if not matching:
        if settings.accept_unknown_targets:
            return
        raise _no_target(spec.target, known)
    fitting: list[tuple[Target, ...]] = []
    for i, task in enumerate(spec.tasks):
        path = f"tasks.{i}.workload" if "tasks" in body else "workload"
        fitting.append(_supporting(task.workload, matching, path))
    _one_kind_for_all(fitting)


def _supporting(workload: Workload, targets: Sequence[Target], path: str) -> tuple[Target, ...]:
    able: list[Target] = []
    first: InvalidField | None = None
    for target in targets:
        try:
            check_supported(workload, target)
        except InvalidField as fault:
            first = first or fault
        else:
            able.append(target)
    if not able:
        assert first is not None
        raise first.under(path)
    return tuple(able)


def _one_kind_for_all(fitting: Sequence[Sequence[Target]]) -> None:
    """A runner binds a job to one kind of device: some kind must do all of its tasks."""
    kinds = {t.kind for t in fitting[0]}
    for i, targets in enumerate(fitting):
        kinds &= {t.kind for t in targets}
        if not kinds:
            able = tuple(sorted({t.kind for t in targets}))
            message = "no single kind of device can do this task and those before it: submit them as jobs of their own"
            raise InvalidField(f"tasks.{i}.workload", message, able)


def _no_target(asked: TargetQuery, known: Sequence[Target]) -> InvalidField:
    names = tuple(f"{t.kind} {t.arch} ({t.model}, {t.cores} cores)" for t in known)
    wanted = ", ".join(f"{name} {value}" for name, value in asked.to_json().items())
    if not names:
        return InvalidField("target", f"no device of {wanted} is known, nor any other: start a runner first")
    of_kind = [t for t in known if asked.kind in ("auto", t.kind)]
    field = "target" if of_kind else "target.kind"
    for name in ("arch", "model", "cores"):
        value = getattr(asked, name)
        if of_kind and value is not None and all(getattr(t, name) != value for t in of_kind):
            field = f"target.{name}"
            break
    return InvalidField(field, f"no device of {wanted} is known; known are {'; '.join(names)}", names)
