#!/bin/bash
# Runs every stage of `make test`, also after one has failed, and prints the counts of all of them.
#
# A stage that runs cargo tests counts its tests; any other counts as one. The last lines are the
# summary that CI reads: `N passed, N failed`, alone on a line.
set -uo pipefail
cd "$(dirname "$0")/../.."
logs=.build/logs
rm -rf "$logs"
mkdir -p "$logs"

# The slowest piece is built while the rest is checked; `it` and `e2e` wait for it through ensure.sh's lock.
timeout 2400 nice -n 10 tests/apiserver/ensure.sh > "$logs/apiserver.path" 2> "$logs/apiserver.log" &
building=$!
# What is started is ended, whatever happens in between.
running=
trap 'kill $building $running 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

passed=0 failed=0 table=
for stage in "$@"; do
  if [ "$stage" = it ]; then
    if ! wait "$building"; then
      echo "--- the API server could not be built; the last lines of its log:" >&2
      tail -n 40 "$logs/apiserver.log" >&2
    fi
    building=
  fi
  echo "=== $stage"
  begin=$SECONDS
  code=0
  : > "$logs/$stage.log"
  # Its own process group, ended as a whole should it hang; tail shows the log while it grows.
  timeout --kill-after=30 "${STAGE_SECONDS_MAX:-1800}" "${MAKE:-make}" --no-print-directory "$stage" > "$logs/$stage.log" 2>&1 &
  running=$!
  tail --pid="$running" --sleep-interval=0.2 -n +1 -f "$logs/$stage.log" &
  showing=$!
  wait "$running" || code=$?
  running=
  wait "$showing" || true
  if [ "$code" = 124 ]; then echo "--- $stage took longer than ${STAGE_SECONDS_MAX:-1800} s and was ended" | tee -a "$logs/$stage.log"; fi
  read -r p f < <(awk '/^test result: / { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed;") p += $i; if ($(i + 1) == "failed;") f += $i } } END { print p + 0, f + 0 }' "$logs/$stage.log")
  # A stage without tests of its own, and a stage that broke outside its tests, count as one.
  if [ "$code" != 0 ] && [ "$f" = 0 ]; then f=1; fi
  if [ "$code" = 0 ] && [ "$p" = 0 ]; then p=1; fi
  passed=$((passed + p)) failed=$((failed + f))
  table+=$(printf '%-16s %6d %6d %6ds  %s' "$stage" "$p" "$f" $((SECONDS - begin)) "$(grep -h '^result: ' "$logs/$stage.log" | tail -n 1)")$'\n'
done

printf '\n%-16s %6s %6s %7s\n%s\n' stage passed failed time "$table"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
