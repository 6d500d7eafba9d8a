"""Faults of a request, each naming the field that is wrong, so that a service can answer with it."""


class InvalidField(ValueError):
    """A field of a workload, target or budget cannot be right.

    `field` is the dotted path from the noun's own root (for example ``heads_kv``); `allowed` lists what would be
    accepted, where that is a finite list.
    """

    def __init__(self, field: str, message: str, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.allowed = allowed

    def under(self, prefix: str) -> "InvalidField":
        """The same fault seen from a noun that holds this one in the field `prefix`."""
        return InvalidField(f"{prefix}.{self.field}" if self.field else prefix, self.message, self.allowed)
