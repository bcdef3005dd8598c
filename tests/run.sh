#!/usr/bin/env bash
# Sets up and runs every test of the repository.
#   tests/run.sh             everything
#   tests/run.sh NAME..      only these suites: format build lint docs guests rust policies e2e
# A tool that is missing and cannot be installed is listed; in CI (CI=true) that is a failure.
# Each suite has a time budget in seconds; one that overruns it fails.
set -uo pipefail
cd "$(dirname "$0")/.."

export CARGO_TERM_COLOR=never
cache="${MILLRACE_TEST_CACHE:-target/test-tools}"
logs=target/test-logs
mkdir -p "$cache" "$logs"

missing=()
failed=()
passed_tests=0
failed_tests=0

note() { printf '== %s\n' "$*"; }

# --- tools -----------------------------------------------------------------------------------------------------------

install_debian() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } >"$logs/apt.log" 2>&1
}

need_compilers() {
  command -v cargo >/dev/null || missing+=("cargo (https://rustup.rs, version 1.95 or newer)")
  command -v gcc >/dev/null && command -v g++ >/dev/null || install_debian gcc g++ || missing+=("gcc and g++ (apt-get install gcc g++)")
  command -v cargo >/dev/null
}

need_venv() {
  python3 -c 'import venv, ensurepip' 2>/dev/null || install_debian python3-venv python3-pip ||
    { missing+=("python3 with venv and pip (apt-get install python3-venv python3-pip)"); return 1; }
}

need_python() {
  need_venv || return 1
  if ! "$cache/venv/bin/python" -c 'import openai, pytest' 2>/dev/null; then
    python3 -m venv "$cache/venv" &&
      "$cache/venv/bin/pip" install --quiet --disable-pip-version-check -r tests/e2e/requirements.txt >"$logs/pip.log" 2>&1 ||
      { missing+=("Python packages of tests/e2e/requirements.txt (see $logs/pip.log)"); return 1; }
  fi
}

need_guest_toolchain() {
  if rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then return 0; fi
  if [ -x /usr/bin/cargo ] && /usr/bin/rustc --version >/dev/null 2>&1 && [ -e /usr/lib/rustlib/src/rust/library/Cargo.lock ] && command -v wasm-ld >/dev/null; then return 0; fi
  install_debian rustc-web cargo-web rust-web-src libstd-rust-web-dev lld && return 0
  rustup target add wasm32-unknown-unknown >"$logs/rustup.log" 2>&1 && return 0
  missing+=("a Rust toolchain for wasm32-unknown-unknown (rustup target add wasm32-unknown-unknown, or on Debian: apt-get install rustc-web cargo-web rust-web-src libstd-rust-web-dev lld)")
  return 1
}

need_model() {
  examples/fetch-model.sh || { missing+=("the SmolLM2 model (examples/fetch-model.sh)"); return 1; }
}

# --- suites ----------------------------------------------------------------------------------------------------------
# All of them build the whole workspace at once: cargo then resolves the same features every time, and nothing large (wasmtime)
# is compiled twice.

built="$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug"

suite_format() { cargo fmt --all --check && (cd plugins && cargo fmt --all --check); }
# The build without page tags is one for measurements; it must go on compiling. Only crates of the workspace have that feature, and the
# same targets need the same features of all others, so none of those is compiled again.
suite_lint() {
  cargo clippy --workspace --all-targets --locked --features millrace-policy-wasm/example-policies -- -D warnings &&
    cargo clippy --workspace --all-targets --no-default-features --locked -- -D warnings
}
suite_docs() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --document-private-items; }
suite_build() { cargo test --workspace --locked --no-run; }
# Built-in policies from source; the rust suite compares their decisions with the committed builds.
suite_guests() {
  cargo test --workspace --locked --no-run &&
    MILLRACE_COMPONENTIZE="$built/examples/componentize" plugins/build.sh target/guests
}
suite_rust() {
  if [ -f target/guests/schedule.wasm ]; then export MILLRACE_PLUGINS_BUILT="$PWD/target/guests"; fi
  cargo test --workspace --locked --no-fail-fast
}
# Policies in every language: the examples, asked, and a new project of every language and kind. Toolchains stay with the other tools.
suite_policies() {
  export MILLRACE="$built/millrace" MILLRACE_POLICY_TOOLS="$(realpath -m "$cache")/policies"
  cargo test --workspace --locked --no-run &&
    examples/policies/build.sh target/policies &&
    MILLRACE_EXAMPLE_POLICIES="$PWD/target/policies" \
      cargo test --workspace --locked --features millrace-policy-wasm/example-policies --test examples &&
    tests/new-policies.sh target/policies
}
suite_e2e() {
  mkdir -p target/e2e
  cargo test --workspace --locked --no-run && cp "$built/millrace" target/e2e/millrace &&
    cargo test --workspace --locked --no-run --features millrace/fault-injection && cp "$built/millrace" target/e2e/millrace-faults &&
    "$cache/venv/bin/python" -m pytest tests/e2e -q -p no:cacheprovider
}

# run NAME BUDGET_S
run() {
  local name=$1 budget_s=$2 began=$SECONDS status=0 log="$logs/$1.log"
  note "$name"
  export -f "suite_$name"
  cache="$cache" built="$built" timeout --kill-after=10 "$budget_s" bash -uo pipefail -c "suite_$name" >"$log" 2>&1 || status=$?
  count "$log"
  if [ "$status" = 0 ]; then
    printf '   ok, %d s\n' $((SECONDS - began))
  else
    [ "$status" = 124 ] && printf '   over its budget of %d s\n' "$budget_s"
    printf '   FAILED (exit %d, %d s); the end of %s:\n' "$status" $((SECONDS - began)) "$log"
    grep -E '^(error|FAILED|test .* FAILED|---- )|panicked at' "$log" | head -n 30 | sed 's/^/   | /'
    tail -n 40 "$log" | sed 's/^/   | /'
    failed+=("$name")
  fi
}

# Adds what the test runners in a log counted.
count() {
  local rust_passed rust_failed py_passed py_failed
  rust_passed=$(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed.*/\1/p' "$1" | paste -sd+ - | bc_sum)
  rust_failed=$(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed.*/\2/p' "$1" | paste -sd+ - | bc_sum)
  py_passed=$(grep -E '^[0-9].* in [0-9.]+s' "$1" | grep -oE '[0-9]+ passed' | grep -oE '[0-9]+' | paste -sd+ - | bc_sum)
  py_failed=$(grep -E '^[0-9].* in [0-9.]+s' "$1" | grep -oE '[0-9]+ (failed|error)' | grep -oE '[0-9]+' | paste -sd+ - | bc_sum)
  passed_tests=$((passed_tests + rust_passed + py_passed))
  failed_tests=$((failed_tests + rust_failed + py_failed))
}
bc_sum() { local sum; read -r sum || true; echo $((${sum:-0})); }

suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(format build lint docs guests rust policies e2e)
need_compilers || suites=()
for suite in ${suites[@]+"${suites[@]}"}; do
  case "$suite" in
    format) run format 60 ;;
    # From nothing some 9 minutes of two free cores.
    build) run build 2400 ;;
    lint) run lint 600 ;;
    docs) run docs 600 ;;
    guests) need_guest_toolchain && run guests 600 ;;
    rust) need_model; run rust 1500 ;;
    policies) need_guest_toolchain && need_venv && run policies 1200 ;;
    e2e) need_model && need_python && run e2e 1200 ;;
    *) echo "unknown suite: $suite (format build lint docs guests rust policies e2e)" >&2; exit 2 ;;
  esac
done

echo
if [ ${#missing[@]} -gt 0 ]; then
  echo "Missing tools: ${#missing[@]}"
  printf '  - %s\n' "${missing[@]}"
  if [ -n "${CI:-}" ]; then failed+=("missing tools"); fi
fi
[ ${#suites[@]} -gt 0 ] || failed+=("nothing ran")
if [ ${#failed[@]} -gt 0 ]; then
  printf 'Failed: %s\n' "${failed[*]}"
  [ "$failed_tests" -gt 0 ] || failed_tests=${#failed[@]}
fi
echo "$passed_tests passed, $failed_tests failed"
[ ${#failed[@]} -eq 0 ]
