"""The option that names users' own kernels: of the commands that measure, never of a request."""

from collections.abc import Sequence
from typing import Annotated

import typer

Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", help="your own kernel, module:function, measured in every final beside ours; repeatable"),
]


def check_peers(peers: Sequence[str] | None) -> None:
    """ValueError naming the option for what is not module:function."""
    from workers.peers import check_spec

    for spec in peers or ():
        check_spec(spec)
