#!/usr/bin/env bash
# Makes everything the other scripts need: .venv with the package in it, a browser for the tests, the default model.
# Needs Python 3.11 or later with venv and pip, and nothing else. Run it again at any time: what is there is kept.
#
#   STREAMLENS_PYTHON       the Python to build .venv with       (default: the first that fits, 3.11 first)
#   STREAMLENS_SETUP_MODEL  the model to fetch, or `none`        (default: smollm2-135m)
#   STREAMLENS_HOME         where models are kept                (default: the platform's cache folder)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="$PWD/.venv"
stamp="$venv.stamp"
model="${STREAMLENS_SETUP_MODEL:-smollm2-135m}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# Two set-ups at once take turns. The lock goes with the process, however it ends. (Without flock they take no turns.)
exec 9>>"$stamp"
if command -v flock >/dev/null; then
  flock -n 9 || { say "waiting for another set-up of this folder"; flock 9; }
fi

# 1. A Python that can build the environment. 3.11 first: the tested versions were tested on it.
set -- python3.11 python3 python3.12 python3.13 python3.14 python
[ -z "${STREAMLENS_PYTHON:-}" ] || set -- "$STREAMLENS_PYTHON"
python=
for candidate in "$@"; do
  if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python="$candidate"
    break
  fi
done
[ -n "$python" ] || fail "no Python 3.11 or later with venv and pip was found. Install one (Debian: apt-get install python3" \
  "python3-venv), or name it: STREAMLENS_PYTHON=/path/to/python3.11 bash scripts/setup.sh"

# 2. The environment. The stamp says what was built on what: line 1 the Python and the folder (an environment does not
#    survive a move), line 2 a hash of what was asked for. It says `building` until all is there, so that an install that
#    was interrupted starts clean. An environment that has no stamp is somebody else's and is left alone.
want=$("$python" - pyproject.toml constraints.txt <<'PY'
import hashlib, sys
from pathlib import Path
print(sys.version.split()[0], Path.cwd())
print(hashlib.sha256(b"\0".join(Path(name).read_bytes() for name in sys.argv[1:])).hexdigest())
PY
)
have=$(cat "$stamp")
works() { "$venv/bin/python" -c 'import pip, pytest, streamlens' 2>/dev/null; }

if [ "$have" = "$want" ] && works; then
  say "environment .venv is up to date"
elif [ -z "$have" ] && [ -e "$venv" ]; then
  fail "$venv was not made by this script. Move it away and run this again"
else
  started=$SECONDS
  echo building >"$stamp"
  if [ "$(head -n 1 <<<"$have")" = "$(head -n 1 <<<"$want")" ] && works; then
    say "pyproject.toml or constraints.txt changed: updating .venv"
  else
    say "building .venv with $("$python" -V) (a minute or two, mostly torch)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
  fi
  "$venv/bin/python" -m pip install --quiet --editable '.[dev]' --constraint constraints.txt ||
    fail "the install failed; pip's message is above. Mend it and run this again: it starts clean"
  printf '%s\n' "$want" >"$stamp"
  say "environment .venv is ready ($((SECONDS - started)) s)"
fi

# 3. A browser, for the tests that look at pages and save pictures. The package itself works without one.
browser=
for candidate in chromium chromium-browser google-chrome google-chrome-stable; do
  browser=$(command -v "$candidate" || true)
  [ -z "$browser" ] || break
done
if [ -n "$browser" ]; then
  say "browser is $browser"
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing Debian's chromium"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-liberation; } >/dev/null ||
    say "chromium could not be installed; the tests that need a browser will say so"
else
  say "no Chromium or Chrome found: to save pictures and run the browser tests, install one (Debian: apt-get install chromium)"
fi

# 4. The model. `models pull` keeps one that is whole.
if [ "$model" = none ]; then
  say "no model asked for"
else
  say "model $model"
  "$venv/bin/streamlens" models pull "$model" >&2
fi
