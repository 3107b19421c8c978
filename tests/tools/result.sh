#!/bin/bash
# Passes the output of `cargo test` on, line by line as it comes (some awks read whole blocks), and ends it with the line
# that tells the counts: `result: NAME passed=… failed=…`.
name=$1 passed=0 failed=0
while IFS= read -r line; do
  printf '%s\n' "$line"
  if [[ $line =~ ^test\ result:.*\ ([0-9]+)\ passed\;\ ([0-9]+)\ failed\; ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
  fi
done
printf 'result: %s passed=%d failed=%d\n' "$name" "$passed" "$failed"
