#!/usr/bin/env bash
# Makes .venv-peers: nnsight and interpkit, which scripts/bench.py compares with and nothing else needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="$PWD/.venv-peers"
wanted=scripts/benchmarks/peer_env/requirements.txt
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

if cmp -s "$wanted" "$venv/made-from.txt"; then
  echo "peers: .venv-peers is up to date" >&2
  exit 0
fi
bash scripts/setup.sh
rm -rf "$venv"
.venv/bin/python -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --requirement "$wanted"
cp "$wanted" "$venv/made-from.txt"
echo "peers: .venv-peers is ready" >&2
