"""The driver's view of a measuring actor: every death of it becomes a value or a named fault."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from tuner.ports import MeasurerUnavailable
from workers.ray_actors import CONTROL, INFO

POLL_S = 0.02
ALIVE_EVERY_S = 15.0  # how often an actor that works on one call is asked whether it still lives


class DeviceLost(RuntimeError):
    """The measuring actor died; the next call goes to a new one."""


class Cancelled(RuntimeError):
    """The session was cancelled while it waited for the device."""


@dataclass(frozen=True)
class Call:
    """A call on its way to an actor, or there."""

    actor: Any
    reference: Any


class RemoteDevice:
    """One device's actor, remade when it dies. Thread-safe. `make` raises MeasurerUnavailable when the device left."""

    def __init__(self, make: Callable[[], Any], timeout_s: float) -> None:
        self._make = make
        self._timeout_s = timeout_s
        self._guard = threading.Lock()
        self._actor: Any = None

    def actor(self) -> Any:
        with self._guard:
            if self._actor is None:
                self._actor = self._make()
            return self._actor

    def work(self, method: str, *arguments: object) -> Any:
        """A call that may take as long as its own limits allow. Raises DeviceLost, MeasurerUnavailable."""
        return self.answer(self.start(method, *arguments))

    def start(self, method: str, *arguments: object) -> Call:
        """The same without waiting: such calls are done one after another, in this order."""
        actor = self.actor()
        return Call(actor, getattr(actor, method).remote(*arguments))

    def answer(self, call: Call) -> Any:
        """What a started call gave. Raises DeviceLost, MeasurerUnavailable."""
        while not ray.wait([call.reference], timeout=ALIVE_EVERY_S)[0]:
            self.control("doing")  # raises where nobody is there any more to end the call by its limits
        return self.get(call, self._timeout_s)

    def control(self, method: str, *arguments: object, timeout_s: float | None = None) -> Any:
        """A call that is answered at once, even while a measurement runs. Raises DeviceLost, MeasurerUnavailable."""
        actor = self.actor()
        reference = getattr(actor, method).options(concurrency_group=CONTROL).remote(*arguments)
        return self.get(Call(actor, reference), timeout_s or self._timeout_s)

    def ask_info(self) -> Call:
        """Ask what the device is, without waiting for the answer."""
        actor = self.actor()
        return Call(actor, actor.info.options(concurrency_group=INFO).remote())

    def acquire(self, session: str, cancelled: Callable[[], bool]) -> None:
        """Wait until the session holds the device. Raises Cancelled, DeviceLost, MeasurerUnavailable."""
        while not self.control("acquire", session):
            if cancelled():
                self.control("release", session)
                raise Cancelled
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End the actor, and with it its child."""
        with self._guard:
            if self._actor is not None:
                ray.kill(self._actor)
                self._actor = None

    def get(self, call: Call, timeout_s: float) -> Any:
        """The value of a call. Raises DeviceLost, MeasurerUnavailable, or what the call itself raised."""
        try:
            return ray.get(call.reference, timeout=timeout_s)
        except GetTimeoutError as fault:
            message = f"the device's actor did not answer within {timeout_s:g} s: is its host still in the cluster?"
            raise MeasurerUnavailable(message) from fault
        except RayActorError as fault:
            self._forget(call.actor)
            raise DeviceLost(str(fault).splitlines()[0]) from fault
        except RayTaskError as fault:
            raise fault.as_instanceof_cause() from None
        except RayError as fault:
            raise MeasurerUnavailable(f"Ray: {type(fault).__name__}: {str(fault).splitlines()[0]}") from fault

    def _forget(self, actor: Any) -> None:
        with self._guard:
            if self._actor is actor:
                self._actor = None
        # Until Ray itself takes the actor for dead, its name leads back to it; a kill says so.
        ray.kill(actor)
        time.sleep(POLL_S)
