#!/bin/sh
# Builds {{name}}.wasm with componentize-py, in a virtual environment of its own: in MILLRACE_POLICY_TOOLS, or else in .tools here.
# MILLRACE names the millrace binary where it is not on the path.
set -eu
cd "$(dirname "$0")"
millrace=${MILLRACE:-millrace}
tools=${MILLRACE_POLICY_TOOLS:-.tools}/python

command -v "$millrace" >/dev/null || { echo "build.sh: no millrace on the path; say MILLRACE=/path/to/millrace" >&2; exit 1; }
if [ ! -x "$tools/bin/componentize-py" ]; then
  python3 -m venv "$tools" || { echo "build.sh: python3 with venv is missing (apt-get install python3-venv python3-pip)" >&2; exit 3; }
  "$tools/bin/pip" install --quiet --disable-pip-version-check componentize-py==0.25.1
fi
# Without WASI: a policy gets no files, network or environment.
"$tools/bin/componentize-py" --quiet -d wit -w {{kind}}-policy componentize --stub-wasi -p . policy -o {{name}}.wasm
"$millrace" policy check {{name}}.wasm
