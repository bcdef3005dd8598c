#!/bin/sh
# Builds the example policies, each in a project that `millrace policy new` makes, as their authors would.
#
#   examples/policies/build.sh DIRECTORY [NAME..]      components go to DIRECTORY; NAME: edf load-shedding affinity cost-tiers
#
# MILLRACE names the millrace binary where it is not on the path. Toolchains are fetched into MILLRACE_POLICY_TOOLS, or else into
# DIRECTORY/.tools; projects stay in DIRECTORY/projects.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { echo "usage: examples/policies/build.sh DIRECTORY [NAME..]" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- edf load-shedding affinity cost-tiers
MILLRACE=$(command -v "${MILLRACE:-millrace}") || { echo "build.sh: no millrace on the path; say MILLRACE=/path/to/millrace" >&2; exit 1; }
export MILLRACE MILLRACE_POLICY_TOOLS="${MILLRACE_POLICY_TOOLS:-$out/.tools}"
mkdir -p "$MILLRACE_POLICY_TOOLS"
# Projects in Rust share what they compile.
export CARGO_TARGET_DIR="$out/target"

# NAME LANGUAGE KIND SOURCE PATH-IN-THE-PROJECT C-LIFECYCLE
build() {
  project=$out/projects/$1
  rm -rf "$project"
  mkdir -p "$out/projects"
  "$MILLRACE" policy new "$project" --lang "$2" --kind "$3"
  if [ "$2" = c ]; then
    # The lifecycle of a new project stays, behind the policy's own part.
    sed -n '/^bool exports_millrace_policy_lifecycle_init/,$p' "$project/$5" >"$project/lifecycle.part"
    { cat "$here/$4"; echo; cat "$project/lifecycle.part"; } >"$project/$5"
  else
    cp "$here/$4" "$project/$5"
  fi
  "$project/build.sh"
  cp "$project/$1.wasm" "$out/$1.wasm"
}

for name in "$@"; do
  case $name in
  edf) build edf rust schedule edf.rs src/lib.rs ;;
  load-shedding) build load-shedding python route load_shedding.py policy.py ;;
  affinity) build affinity js route affinity.js policy.js ;;
  cost-tiers) build cost-tiers c precision cost_tiers.c policy.c ;;
  *) echo "build.sh: no example is called $name" >&2; exit 2 ;;
  esac
done
