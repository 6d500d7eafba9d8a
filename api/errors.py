"""Faults that belong to HTTP alone. Their status stands in `api.problems.TABLE`, beside that of every other error."""


class ApiError(Exception):
    """`detail` is for a person; `extra` becomes further members of the problem document."""

    def __init__(self, detail: str, **extra: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra


class BodyNotJson(ApiError):
    """The body is no JSON document by RFC 8259, or one that no two parsers read alike (a repeated name)."""


class BodyTooDeep(ApiError):
    """Objects and lists are nested deeper than any request needs."""


class BodyTooLarge(ApiError):
    """The body is longer than the service reads."""


class UnsupportedMediaType(ApiError):
    """The body is not declared as JSON in UTF-8."""


class KeyMissing(ApiError):
    """The service wants a key and the request carries none."""


class KeyRefused(ApiError):
    """The request carries a key that does not open this service."""


class ScopeRefused(ApiError):
    """The key is known, and may not do this."""


class TooManyRequests(ApiError):
    """The key asks more often than it may; `retry_after_s` says when to come back."""


class CrossSite(ApiError):
    """A page of another site tries to change something in the name of the user."""


class HostRefused(ApiError):
    """The Host header names a machine that this keyless service is not."""


class Untuned(ApiError):
    """No schedule of this workload on the wanted target."""


class Stale(ApiError):
    """There is a schedule, but for another driver, compiler, sketch version or the like."""


class TooManyWatchers(ApiError):
    """All the event streams that this process serves are taken."""


class BindingRefused(ValueError):
    """An address off loopback was asked for without a key. Raised before the service listens."""
