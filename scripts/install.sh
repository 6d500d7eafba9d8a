#!/usr/bin/env bash
# Makes the virtual environment of the project from the lock. Says what is missing with its one install line;
# where the user is root on a Debian, installs it.
#   scripts/install.sh          what `make demo` needs
#   scripts/install.sh test     and what the tests need besides (PostgreSQL's server programs, a browser)
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

compiles() {
  local made status=0
  made=$(mktemp)
  echo 'int main(void) { return 0; }' | cc -x c - -o "$made" 2>/dev/null || status=1
  rm -f "$made"
  return $status
}

as_root() {
  if command -v sudo >/dev/null; then echo "sudo sh -c '$1'"; else echo "su -c '$1'"; fi
}

main() {
  local what=${1:-demo}
  if ! command -v "$PYTHON" >/dev/null; then
    echo "There is no $PYTHON. tilewright needs Python 3.11 or 3.12: install it, or name one: make demo PYTHON=python3.11" >&2
    exit 1
  fi
  if ! fits "$PYTHON"; then
    echo "tilewright needs Python 3.11 or 3.12, $PYTHON is $("$PYTHON" --version 2>&1): make demo PYTHON=python3.11" >&2
    exit 1
  fi

  missing=()
  optional=()
  "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
  compiles || missing+=(gcc libc6-dev)
  if [ "$what" = test ]; then
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || missing+=(postgresql)
    command -v chromium >/dev/null && command -v chromedriver >/dev/null || optional+=(chromium chromium-driver)
  fi
  line="apt-get install -y --no-install-recommends"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    if [ ${#missing[@]} -gt 0 ] || [ ${#optional[@]} -gt 0 ]; then
      echo "Installing what is missing: ${missing[*]} ${optional[*]}"
      apt-get update -qq
    fi
    if [ ${#missing[@]} -gt 0 ]; then
      $line -qq "${missing[@]}" >/dev/null
    fi
    if [ ${#optional[@]} -gt 0 ] && ! $line -qq "${optional[@]}" >/dev/null; then
      echo "No browser could be installed: the browser tests will skip and say so."
    fi
  elif [ ${#missing[@]} -gt 0 ]; then
    echo "Missing: ${missing[*]}. Install with:" >&2
    echo "    $(as_root "apt-get update && $line ${missing[*]} ${optional[*]}")" >&2
    exit 1
  elif [ ${#optional[@]} -gt 0 ]; then
    echo "Not installed (its tests will skip): ${optional[*]}. Install with: $(as_root "$line ${optional[*]}")"
  fi

  stamp=$VENV/.installed
  wanted=$(cat requirements/lock.txt pyproject.toml | sha256sum | cut -d' ' -f1)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && fits "$VENV/bin/python"; then
    exit 0
  fi
  echo "Installing into $VENV (a few minutes the first time)"
  # One that was interrupted before it had pip, or was made by another Python, is made again.
  if ! fits "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    clear=()
    [ -f "$VENV/pyvenv.cfg" ] && clear=(--clear)  # never a folder that is something else
    "$PYTHON" -m venv "${clear[@]}" "$VENV"
  fi
  pip() { "$VENV/bin/python" -m pip --disable-pip-version-check -q "$@" 2> >(grep -v '^WARNING: Location' >&2); }
  pip install "$(grep '^torch==' requirements/lock.txt)" -c requirements/lock.txt
  # The lock is complete: nothing is left to resolve.
  pip install --no-deps -r requirements/lock.txt
  pip install --no-deps --no-build-isolation -e .
  echo "$wanted" > "$stamp"
}

main "$@"; exit  # read whole before it runs: the file may change meanwhile, by a git pull
