#!/bin/bash
# Passes the output of `cargo test` on and ends it with the line that tells the counts: `result: NAME passed=… failed=…`.
exec awk -v name="$1" '
  { print; fflush() }
  /^test result: / { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed;") passed += $i; if ($(i + 1) == "failed;") failed += $i } }
  END { printf "result: %s passed=%d failed=%d\n", name, passed, failed }
'
