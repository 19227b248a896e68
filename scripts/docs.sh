#!/usr/bin/env bash
# Builds the documentation into site/, or into the folder that is given: scripts/docs.sh /tmp/site
# Every warning is an error: a dead link, a page that is in no menu, a name the reference no longer finds.
# To read it, with its search:  python -m http.server --bind 127.0.0.1 --directory site
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
site="$(realpath -m "${1:-site}")"
python=.venv/bin/python
[ -x "$python" ] || python=python3
"$python" -c 'import material, mkdocstrings_handlers.python' 2>/dev/null || {
  echo "docs: mkdocs-material and mkdocstrings are missing: run scripts/setup.sh, which installs them" >&2
  exit 1
}
export NO_MKDOCS_2_WARNING=1  # mkdocs-material's note about a release that is not used here
exec "$python" -m mkdocs build --strict --clean --quiet --site-dir "$site"
