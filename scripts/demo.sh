#!/usr/bin/env bash
# The main job on one sentence: what did each part of the model write at " bank", and for which word does it speak?
# Prints the table and writes a page with three plots. Does all set-up itself; takes seconds when run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh

page=demo/bank.html
mkdir -p demo
ask=(decompose "After crossing the river, she rested on the bank" --token bank --for " river" --against " money")

echo
echo 'What each part of the model wrote at " bank": logit(" river") - logit(" money")'
echo
.venv/bin/streamlens "${ask[@]}" --format table --html "$page"
echo
echo "The page with the plots: $PWD/$page (opens in any browser, with no network)"
