#!/usr/bin/env bash
# Every check there is, the same here and in continuous integration: format, lint, types, tests. Stops at the first that
# fails. Does all set-up itself. What is given is passed on to pytest: scripts/test.sh tests/test_layout.py -k hooks
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh

bin="$PWD/.venv/bin"
step() { printf '\n== %s\n' "$1"; }

step "ruff format"
"$bin/ruff" format --check .
step "ruff check"
"$bin/ruff" check .
step "pyright"
PYRIGHT_PYTHON_IGNORE_WARNINGS=1 "$bin/pyright" --pythonpath "$bin/python"
step "pytest"
# Two workers with one thread each: more threads than cores make the whole run slower.
OMP_NUM_THREADS=1 exec "$bin/python" -m pytest -n 2 "$@"
