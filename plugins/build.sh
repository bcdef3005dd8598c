#!/bin/sh
# Builds the built-in policies from source into a directory (default: dist/, which the host embeds).
#
#   plugins/build.sh [DIRECTORY]
#
# Takes the Rust toolchain of rustup if it has the target wasm32-unknown-unknown, else Debian's, which builds std from source.
# CARGO_TARGET_DIR is honoured for the host's tool; guests go to plugins/target, or to MILLRACE_PLUGINS_TARGET.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/dist}
guests=${MILLRACE_PLUGINS_TARGET:-$here/target}
target=wasm32-unknown-unknown
debian_cargo=/usr/bin/cargo
debian_rustc=/usr/bin/rustc
debian_source=/usr/lib/rustlib/src/rust/library/Cargo.lock

has_target() {
    std=$("$1" --print target-libdir --target $target 2>/dev/null) && ls "$std"/libstd-*.rlib >/dev/null 2>&1
}

# MODULE COMPONENT, with the tool that MILLRACE_COMPONENTIZE names, or else one built now, in the root workspace and with the
# toolchain that builds the host.
componentize() {
    if [ -n "${MILLRACE_COMPONENTIZE:-}" ]; then
        "$MILLRACE_COMPONENTIZE" "$1" "$2"
    else
        (cd "$here/.." && cargo run --quiet -p millrace-policy-wasm --example componentize -- "$1" "$2")
    fi
}

# Paths of this machine stay out of the components: the cargo registry, std's source, this directory.
remap() {
    echo "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo --remap-path-prefix=$1=rust --remap-path-prefix=$here=plugins"
}

# PACKAGE FILE: one package at a time, because each takes the SDK with the feature of its world.
build_guest() {
    case $toolchain in
    installed)
        CARGO_TARGET_DIR=$guests RUSTFLAGS=$(remap "$(rustc --print sysroot)/lib/rustlib/src/rust") \
            cargo build --quiet --release --locked --target $target -p "$1" ;;
    debian)
        # std is built too, so a panic can be the trap alone: there is nobody in a guest to read its message, and a third of the code
        # would be there to write it.
        CARGO_TARGET_DIR=$guests RUSTFLAGS="$(remap ${debian_source%/library/*}) -Zunstable-options -Cpanic=immediate-abort" \
            CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld RUSTC_BOOTSTRAP=1 RUSTC=$debian_rustc \
            $debian_cargo build --quiet --release --locked --target $target -Z build-std=std,panic_abort -p "$1" ;;
    esac
    componentize "$guests/$target/release/$(echo "$1" | tr - _).wasm" "$out/$2.wasm"
}

if ! command -v cargo >/dev/null; then
    echo "plugins/build.sh: cargo is missing; install Rust from https://rustup.rs" >&2
    exit 1
fi
if has_target rustc; then
    toolchain=installed
elif [ -x $debian_cargo ] && [ -x $debian_rustc ] && [ -e $debian_source ] && command -v wasm-ld >/dev/null; then
    toolchain=debian
else
    cat >&2 <<'TEXT'
plugins/build.sh: no Rust toolchain for wasm32-unknown-unknown. Either
    rustup target add wasm32-unknown-unknown
or, on Debian 12,
    apt-get update && apt-get install -y --no-install-recommends rustc-web cargo-web rust-web-src libstd-rust-web-dev lld
TEXT
    exit 3
fi

mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$here"
echo "building guests with the $toolchain toolchain"
build_guest millrace-tenant-route route
build_guest millrace-fair-schedule schedule
build_guest millrace-tier-precision precision
for name in affinity-route fcfs-schedule least-loaded-route pressure-precision priority-schedule; do
    build_guest millrace-$name $name
done
