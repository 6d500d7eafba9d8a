"""Files the pages load: ours, and the chart library out of the plotly package. Nothing comes from another host."""

import functools
import gzip
import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

HERE = Path(__file__).parent
STATIC = HERE / "static"
FOREVER = "public, max-age=31536000, immutable"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@functools.cache
def chart_library() -> Path:
    """plotly.min.js inside the installed package, found without importing it."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the dashboard's charts need the plotly package: pip install plotly")
    return Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


@functools.cache
def files() -> dict[str, Path]:
    """Name in the URL -> file. A name holds its content's hash or version, so that it can be cached for ever."""
    found = {_named(path): path for path in sorted(STATIC.iterdir()) if path.suffix in _TYPES}
    found[f"plotly-{importlib.metadata.version('plotly')}.min.js"] = chart_library()
    return found


def _named(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return f"{path.stem}-{digest}{path.suffix}"


@functools.cache
def url(stem: str) -> str:
    """The URL of the file whose name begins with `stem`."""
    name = next(n for n, path in files().items() if path.name.startswith(stem))
    return f"/static/{name}"


def media_type(path: Path) -> str:
    return _TYPES[path.suffix]


@functools.cache
def compressed(path: Path) -> bytes:
    """The chart library takes 4.8 MB plain and 1.4 MB so; made once, at the first request."""
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)
