#!/usr/bin/env bash
# scripts/progress.sh: exit codes of watched and awaited commands, also where the shell has forgotten how the child ended.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

expect() {  # CODE COMMAND...
  local want=$1 code=0
  shift
  "$@" 2>"$folder/said" || code=$?
  [ "$code" = "$want" ] || { echo "progress: '$*' ended with $code, not $want" >&2; cat "$folder/said" >&2; exit 1; }
}

fails_first() { false; true; }  # under `set -e` it fails

for name in "0 true" "1 false" "1 fails_first"; do
  read -r code command <<<"$name"
  recorded "$folder/$command" "$command" &
  child=$!
  wait "$child" || true  # as after a long build: nothing is known of the child any more
  expect "$code" await "$command" "$folder/$command" "$child"
done
expect 7 watched seven "$folder/seven" bash -c 'echo "what it said"; exit 7'
grep -q "what it said" "$folder/said" && grep -q "failed with exit code 7" "$folder/said"
sleep 30 &
child=$!
kill -KILL "$child"
expect 137 await killed "$folder/killed" "$child"
echo "progress: exit codes of 5 commands"
