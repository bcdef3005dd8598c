#!/bin/sh
# Builds {{name}}.wasm with zig cc, in a virtual environment of its own: in MILLRACE_POLICY_TOOLS, or else in .tools here.
# MILLRACE names the millrace binary where it is not on the path.
set -eu
cd "$(dirname "$0")"
millrace=${MILLRACE:-millrace}
tools=${MILLRACE_POLICY_TOOLS:-.tools}/zig

command -v "$millrace" >/dev/null || { echo "build.sh: no millrace on the path; say MILLRACE=/path/to/millrace" >&2; exit 1; }
if ! "$tools/bin/python" -c 'import ziglang' 2>/dev/null; then
  python3 -m venv "$tools" || { echo "build.sh: python3 with venv is missing (apt-get install python3-venv python3-pip)" >&2; exit 3; }
  "$tools/bin/pip" install --quiet --disable-pip-version-check ziglang==0.17.1
fi
mkdir -p target
"$tools/bin/python" -m ziglang cc --target=wasm32-wasi -mexec-model=reactor -O2 -s -Wl,-z,stack-size=262144 -Wall -Wextra -Wno-unused-parameter -Ibindings \
  -o target/module.wasm policy.c bindings/{{kind}}_policy.c bindings/{{kind}}_policy_component_type.o
"$millrace" policy build target/module.wasm -o {{name}}.wasm
"$millrace" policy check {{name}}.wasm
