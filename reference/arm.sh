#!/usr/bin/env bash
# Cargo for 64-bit ARM on any Linux machine: cross-compiled, run under emulation.
#
#   reference/arm.sh                                   the tests of kernels and runtime
#   reference/arm.sh test -p qbert-kernels --test gemm     any other cargo command
#
# Takes the default Rust compiler if it has the target (rustup target add aarch64-unknown-linux-gnu), or else Debian's
# rustc-web. What is missing is installed where apt can do it. Where it cannot be had, the script says so in one line and
# exits with 77. The emulated CPU has every extension; QBERT_ARM_CPU=cortex-a72 is one without dot products.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
linker=aarch64-linux-gnu-gcc
emulator=qemu-aarch64

skip() {
  echo "ARM: skipped, because $*"
  exit 77
}

has_target() { [ -x "$(command -v "$1")" ] && [ -d "$("$1" --print target-libdir --target "$target" 2>/dev/null)" ]; }

find_compiler() {
  for compiler in "${RUSTC:-rustc}" /usr/bin/rustc; do
    if has_target "$compiler"; then
      return 0
    fi
  done
  return 1
}

# The C library of Debian's arm64 packages. Under QEMU 7.2 a program hangs when it starts a thread with the one that comes
# with the cross compiler (-L /usr/aarch64-linux-gnu).
libc=/lib/ld-linux-aarch64.so.1

is_complete() { find_compiler && command -v "$linker" && command -v "$emulator" && [ -e "$libc" ]; }

install_packages() {
  [ "$(id -u)" = 0 ] && command -v apt-get || return 1
  dpkg --add-architecture arm64 && apt-get update -qq || return 1
  local packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross libc6:arm64 libgcc-s1:arm64 qemu-user)
  find_compiler || packages+=(rustc-web libstd-rust-web-dev libstd-rust-web-dev:arm64)
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${packages[@]}"
}

if ! is_complete >/dev/null; then
  install_packages >/dev/null 2>&1 || skip "a compiler for $target, $linker, $emulator or $libc is missing and apt cannot install it"
  is_complete >/dev/null || skip "the packages that apt installed have no compiler for $target"
fi

needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
found=$("$compiler" --version | cut -d ' ' -f 2)
[ "$(printf '%s\n' "$needed" "$found" | sort -V | head -1)" = "$needed" ] || skip "$compiler is $found, older than $needed"

export RUSTC="$compiler"
export CARGO_BUILD_TARGET="$target"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/arm"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$linker"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$emulator -cpu ${QBERT_ARM_CPU:-max}"
# For tests that start themselves again.
export QBERT_TEST_RUNNER="$CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER"
[ $# -gt 0 ] || set -- test --locked -p qbert-kernels -p qbert-runtime --tests
exec cargo "$@"
