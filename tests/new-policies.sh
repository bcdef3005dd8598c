#!/bin/sh
# Makes and builds a new project of every language and kind, as an author would in an empty directory away from the repository; of every
# language one with each of the optional interfaces too, of which the kinds take turns.
#
#   tests/new-policies.sh DIRECTORY        MILLRACE names the binary, MILLRACE_POLICY_TOOLS the folder for toolchains
set -eu

mkdir -p "$1"
cd "$1"
export CARGO_TARGET_DIR="$PWD/target"

# NAME LANGUAGE KIND [OPTION..]
build() {
  name=$1 language=$2 kind=$3
  shift 3
  rm -rf "$name"
  "$MILLRACE" policy new "$name" --lang "$language" --kind "$kind" "$@"
  "$name/build.sh"
  "$MILLRACE" policy bench "$name/$name.wasm" --rows 16 --calls 10
}

# NAME INTERFACE..: the component exports them. That it can be called through them, `check` has seen, which build.sh runs.
exports() {
  name=$1
  shift
  exported=$("$MILLRACE" policy inspect "$name/$name.wasm")
  for interface; do
    case $exported in
    *"millrace:policy/$interface@"*) ;;
    *) echo "$name does not export $interface: $exported" >&2; exit 1 ;;
    esac
  done
}

for language in rust python js c; do
  for kind in route schedule precision; do
    build "new-$language-$kind" $language $kind
  done
done
for language in rust python js c; do
  build "hears-$language" $language route --with feedback
  exports "hears-$language" feedback
  build "hands-over-$language" $language schedule --with handover
  exports "hands-over-$language" handover
  build "both-$language" $language precision --with feedback,handover
  exports "both-$language" feedback handover
done
