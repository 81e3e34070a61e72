#!/usr/bin/env bash
# The tests of kernels and runtime, with the thread pool, under AddressSanitizer and ThreadSanitizer.
# The standard library is not instrumented, which ThreadSanitizer must be told (suppressions below).
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1
target=x86_64-unknown-linux-gnu
packages=(-p qbert-kernels -p qbert-runtime)

echo "== AddressSanitizer"
RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS="detect_leaks=1" \
  cargo test --locked --target "$target" --target-dir target/sanitizer-address "${packages[@]}" --tests

echo "== ThreadSanitizer"
suppressions=$(mktemp)
trap 'rm -f "$suppressions"' EXIT
# Locks and channels of the standard library are invisible to it; what they protect would look unprotected.
printf 'race:std::\nrace:core::\nrace:alloc::\nrace:test::\n' >"$suppressions"
RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" TSAN_OPTIONS="suppressions=$suppressions" \
  cargo test --locked --target "$target" --target-dir target/sanitizer-thread "${packages[@]}" --tests
