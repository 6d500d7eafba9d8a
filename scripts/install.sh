#!/usr/bin/env bash
# Makes the virtual environment of the project from the lock. Says what is missing with its one install line;
# where the user is root on a Debian, installs it.
#   scripts/install.sh          what `make demo` needs
#   scripts/install.sh test     and what the tests need besides (PostgreSQL's server programs, a browser)
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
what=${1:-demo}

missing=()
optional=()
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
command -v cc >/dev/null || command -v gcc >/dev/null || missing+=(gcc libc6-dev)
if [ "$what" = test ]; then
  compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || missing+=(postgresql)
  command -v chromium >/dev/null || optional+=(chromium chromium-driver)
fi
if [ ${#missing[@]} -gt 0 ] || [ ${#optional[@]} -gt 0 ]; then
  line="apt-get install -y --no-install-recommends ${missing[*]} ${optional[*]}"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing what is missing: ${missing[*]} ${optional[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    if [ ${#missing[@]} -gt 0 ]; then
      apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    fi
    if [ ${#optional[@]} -gt 0 ]; then
      apt-get install -y -qq --no-install-recommends "${optional[@]}" >/dev/null ||
        echo "No browser could be installed: the browser tests will skip and say so."
    fi
  elif [ ${#missing[@]} -gt 0 ]; then
    echo "Missing: ${missing[*]}. Install with:" >&2
    echo "    sudo $line" >&2
    exit 1
  else
    echo "Not installed (its tests will skip): ${optional[*]}. Install with: sudo $line"
  fi
fi

"$PYTHON" - <<'EOF'
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 12):
    sys.exit(f"tilewright needs Python 3.11 or 3.12, this is {sys.version.split()[0]}: set PYTHON=python3.11 (make demo PYTHON=python3.11)")
EOF

stamp=$VENV/.installed
wanted=$(cat requirements/lock.txt pyproject.toml | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  touch "$stamp"
  exit 0
fi
echo "Installing into $VENV (a few minutes the first time)"
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check -q "$@" 2> >(grep -v '^WARNING: Location' >&2); }
pip install "$(grep '^torch==' requirements/lock.txt)" -c requirements/lock.txt
# The lock is complete: nothing is left to resolve.
pip install --no-deps -r requirements/lock.txt
pip install --no-deps --no-build-isolation -e .
echo "$wanted" > "$stamp"
