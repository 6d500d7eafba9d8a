"""Users' own kernels in a final: what is said of each."""

from collections.abc import Iterator

import numpy as np

from tuner.best import BestConfig, Final
from tuner.presets import FinalConfig
from tuner.promotion import paired_ratio

PEER_PREFIX = "peer:"


def compared_peers(
    final: Final, best: BestConfig | None, config: FinalConfig, rng: np.random.Generator
) -> Iterator[str]:
    """One line a peer: its median time, and its ratio to the winner (above 1: ours is faster), or why it has none."""
    ours = next((c for c in final.contestants if best is not None and c.candidate == best.candidate), None)
    for peer in final.contestants:
        if not peer.name.startswith(PEER_PREFIX):
            continue
        told = f"{peer.name} takes {float(np.median(peer.run_secs)) * 1e6:.2f} us"
        if ours is not None and len(ours.run_secs) == len(peer.run_secs):
            ratio, (low, high) = paired_ratio(peer, ours, config, rng)
            told += f", {ratio:.3f} [{low:.3f}, {high:.3f}] times ours"
        yield told
    for name, error in final.failures.items():
        if name.startswith(PEER_PREFIX):
            yield f"{name} was left out: {error}"
