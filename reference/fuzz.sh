#!/usr/bin/env bash
# Fuzzes targets one after the other: reference/fuzz.sh SECONDS TARGET…
# Needs cargo-fuzz. Prints executions, the slowest input and the peak of memory; logs are in fuzz/artifacts/.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:?usage: fuzz.sh SECONDS TARGET…}
shift
export RUSTC_BOOTSTRAP=1
failed=0
for target in "$@"; do
  # Only kernels have unsafe code. Elsewhere a sanitizer would only distort the memory that is measured.
  sanitizer=none
  [ "$target" = kernels ] && sanitizer=address
  cargo fuzz build --sanitizer "$sanitizer" -O "$target"
  mkdir -p "corpus/$target" "artifacts/$target"
  log="artifacts/$target.log"
  status=0
  "target/x86_64-unknown-linux-gnu/release/$target" "corpus/$target" "seeds/$target" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=1024 -malloc_limit_mb=1024 -max_len=1000000 -artifact_prefix="artifacts/$target/" -print_final_stats=1 \
    >"$log" 2>&1 || status=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  slowest=$(sed -n 's/^stat::slowest_unit_time_sec: *//p' "$log")
  memory=$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")
  if [ "$status" = 0 ]; then
    echo "$target: $runs executions in $seconds s, slowest $slowest s, at most $memory MB"
  else
    echo "$target: FAILED; see fuzz/$log and fuzz/artifacts/$target/" >&2
    failed=1
  fi
done
exit "$failed"
