#!/bin/sh
# Makes and builds a new project of every language and kind, as an author would in an empty directory away from the repository.
#
#   tests/new-policies.sh DIRECTORY        MILLRACE names the binary, MILLRACE_POLICY_TOOLS the folder for toolchains
set -eu

mkdir -p "$1"
cd "$1"
export CARGO_TARGET_DIR="$PWD/target"
for language in rust python js c; do
  for kind in route schedule precision; do
    name=new-$language-$kind
    rm -rf "$name"
    "$MILLRACE" policy new "$name" --lang $language --kind $kind
    "$name/build.sh"
    "$MILLRACE" policy bench "$name/$name.wasm" --rows 16 --calls 10
  done
done
