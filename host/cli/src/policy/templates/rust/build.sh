#!/bin/sh
# Builds {{name}}.wasm with the Rust toolchain of rustup if it has the target wasm32-unknown-unknown, else with Debian's, which
# builds std from source. MILLRACE names the millrace binary where it is not on the path.
set -eu
cd "$(dirname "$0")"
millrace=${MILLRACE:-millrace}
target=wasm32-unknown-unknown
out=${CARGO_TARGET_DIR:-target}/$target/release
debian_source=/usr/lib/rustlib/src/rust/library/Cargo.lock

command -v "$millrace" >/dev/null || { echo "build.sh: no millrace on the path; say MILLRACE=/path/to/millrace" >&2; exit 1; }
command -v cargo >/dev/null || { echo "build.sh: cargo is missing; install Rust from https://rustup.rs" >&2; exit 1; }
if ls "$(rustc --print target-libdir --target $target 2>/dev/null)"/libstd-*.rlib >/dev/null 2>&1; then
  cargo build --quiet --release --target $target
elif [ -x /usr/bin/cargo ] && [ -e $debian_source ] && command -v wasm-ld >/dev/null; then
  CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc \
    /usr/bin/cargo build --quiet --release --target $target -Z build-std=std,panic_abort
else
  cat >&2 <<'TEXT'
build.sh: no Rust toolchain for wasm32-unknown-unknown. Either
    rustup target add wasm32-unknown-unknown
or, on Debian 12,
    apt-get update && apt-get install -y --no-install-recommends rustc-web cargo-web rust-web-src libstd-rust-web-dev lld
TEXT
  exit 3
fi
"$millrace" policy build "$out/{{module}}.wasm" -o {{name}}.wasm
"$millrace" policy check {{name}}.wasm
