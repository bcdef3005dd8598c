#!/usr/bin/env bash
# Prints a table of what each precision of SmolLM2 costs in accuracy, measured by `millrace eval compare` on text.md beside this
# file; host/model/QUALITY.md is its output. Formats that the GGUF file does not hold are made on the way: gguf_to_hub.py writes it as
# a hub directory, `millrace quantize` makes INT4 of that.
#   examples/eval/precision-table.sh > host/model/QUALITY.md
# MILLRACE names the program (else target/release/millrace, which is built), MILLRACE_SMOLLM2 the model, MILLRACE_MACHINE the
# machine's kind where /proc/cpuinfo says too little. Takes some 15 minutes of two cores and 600 MB of temporary files.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ $# -gt 0 ]; then
  echo "precision-table.sh takes no arguments; it makes every checkpoint that it compares" >&2
  exit 2
fi
model="${MILLRACE_SMOLLM2:-$HOME/.cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf}"
examples/fetch-model.sh >&2
millrace="${MILLRACE:-}"
if [ -z "$millrace" ]; then
  cargo build --release --package millrace >&2
  millrace="${CARGO_TARGET_DIR:-target}/release/millrace"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# numpy from the system where it is there, else in an environment of this script's own.
python=python3
if ! python3 -c 'import numpy' 2>/dev/null; then
  cache="${CARGO_TARGET_DIR:-target}/eval-venv"
  python="$cache/bin/python"
  if ! "$python" -c 'import numpy' 2>/dev/null; then
    echo "numpy: installing it in $cache" >&2
    python3 -m venv "$cache"
    "$python" -m pip install --quiet --disable-pip-version-check 'numpy>=1.24' >&2
  fi
fi
"$python" examples/eval/gguf_to_hub.py "$model" "$work/hub" >&2
for group in 32 64; do
  "$millrace" quantize "$work/hub" "$work/int4-g$group" --weights int4 --group "$group" --report "$work/int4-g$group.report" >/dev/null
  "$python" examples/eval/int4_error.py "$work/hub" "$work/int4-g$group" >"$work/int4-g$group.error"
done
again32="$work/int4-g32" again64="$work/int4-g64"

baseline=fast:bf16+kv-bf16
number=0
# row WHAT PRECISION [OPTION..]
row() {
  local what=$1 precision=$2
  shift 2
  number=$((number + 1))
  echo "$what ($precision)" >&2
  # Every token but the first is scored once, with at least 256 before it where the text has them; all but the first 256 in decode.
  "$millrace" eval compare "$baseline" "$precision" --model "$model" --text examples/eval/text.md --json \
    --window 512 --prefill-tokens 256 --stride 256 "$@" >"$work/$(printf %02d "$number").json"
  printf '%s\n' "$what" >"$work/$(printf %02d "$number").txt"
}

row "BF16, by way of the hub directory" fast:bf16+kv-bf16 --b-model "$work/hub"
row "float32 on the stored weights" reference:stored+kv-f32
row "FP8, blocks of 128x128" fast:fp8+kv-bf16
row "INT8" fast:int8+kv-bf16
row "INT4 g32, as stored" fast:int4+kv-bf16
row "INT4 g32, as stored, float32 activations" reference:int4+kv-f32
row "INT4 g32, as stored, precise" precise:int4+kv-bf16
row "INT4 g32, quantized again" fast:int4+kv-bf16 --b-model "$again32"
row "INT4 g64, quantized again" fast:int4+kv-bf16 --b-model "$again64"
row "INT4 g64, quantized again, float32 activations" reference:int4+kv-f32 --b-model "$again64"
row "BF16, KV FP8" fast:bf16+kv-fp8
row "prefill BF16, decode BF16 with KV FP8" fast:bf16+kv-bf16/bf16+kv-fp8
row "prefill BF16, decode INT4 g32 as stored" fast:bf16+kv-bf16/int4+kv-bf16
row "prefill FP8, decode INT4 g32 as stored" fast:fp8+kv-bf16/int4+kv-bf16
row "prefill FP8, decode INT4 g32 as stored, with KV FP8" fast:fp8+kv-bf16/int4+kv-fp8
row "prefill INT8, decode INT4 g32 as stored, with KV FP8 (lane \`fast\`)" fast:int8+kv-bf16/int4+kv-fp8
row "prefill BF16, decode INT4 g64 quantized again" fast:bf16+kv-bf16/int4+kv-bf16 --b-decode-model "$again64"
row "prefill FP8, decode INT4 g64 quantized again" fast:fp8+kv-bf16/int4+kv-bf16 --b-decode-model "$again64"

machine="${MILLRACE_MACHINE:-$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | sort -u | head -n 1), $(nproc) cores}"
python3 - "$work" "$machine" "$(date -u +%F)" <<'PY'
import json, pathlib, sys

work, machine, date = pathlib.Path(sys.argv[1]), *sys.argv[2:]
results = [(path.with_suffix(".txt").read_text().strip(), json.loads(path.read_text())) for path in sorted(work.glob("[0-9]*.json"))]
first = results[0][1]
if first["kl_nat"]["max"] > 1e-4:
    sys.exit(f"the hub directory is not the model of the GGUF file: its KL is up to {first['kl_nat']['max']}")
error, report = ({g: json.loads((work / f"int4-g{g}.{what}").read_text()) for g in (32, 64)} for what in ("error", "report"))
print(f"""# What precision costs

SmolLM2-135M-Instruct against itself: how far the predictions of each precision are from those of BF16 weights with a BF16 KV
cache in both stages (`{first['a']['precision']}`), and whether the text becomes harder to predict.

**The source is 4-bit already** (a Q4_1 GGUF: 4-bit codes in groups of 32 with a scale and a minimum, 8-bit embedding and head).
BF16 here is those codes widened and rounded, so "INT4 g32, as stored" loses nothing in the weights: what its row shows are INT8
activations. FP8, and what is "quantized again", is quantized a second time, from the 4-bit values. A model of 135 M parameters is
also far more sensitive than the large models that such formats are made for. So the table compares precisions of this file; it does
not tell what quantizing an original checkpoint costs.

| precision | as `eval compare` takes it | KL mean | KL p99 | KL max | same top | perplexity ratio | KL mean in prefill | in decode |
|---|---|---|---|---|---|---|---|---|""")
for what, r in results:
    kl, stage = r["kl_nat"], lambda name: f"{r[name]['kl_nat']['mean']:.5f}" if r[name]["tokens"] else "-"
    print(f"| {what} | `{r['b']['precision']}` | {kl['mean']:.5f} | {kl['p99']:.4f} | {kl['max']:.3f} | {100 * r['same_top']:.2f} % "
          f"| {r['perplexity']['ratio']:.4f} | {stage('prefill')} | {stage('decode')} |")
p, e = first["protocol"], error
print(f"""
**What "quantized again" loses is in the format, not in the search for scales.** Symmetric INT4 has no minimum, so the groups of
Q4_1 do not fit it, whatever their size. The relative error of the weights, over {e[64]['tensors']} tensors:

| scales of symmetric INT4 | g32 | g64 |
|---|---|---|
| largest magnitude / 7, no search | {e[32]['absmax']:.4f} | {e[64]['absmax']:.4f} |
| `millrace quantize` | {e[32]['millrace']:.4f} | {e[64]['millrace']:.4f} |
| the least that any scale of a group can lose | {e[32]['least']:.4f} | {e[64]['least']:.4f} |

`millrace quantize` weighs errors by the size of the weight, so it is near the least plain error, not at it. Quantized are the
{report[64]['quantized_tensors']} projections of the layers; embedding and head, one tensor here, stay in BF16.

- Made on {date} by `examples/eval/precision-table.sh` on: {machine}.
- KL(BF16 || precision) per token in nat over {first['tokens']} tokens; p99: the smallest value that 99 % of the tokens do not exceed;
  same top: tokens for which both think the same token the likeliest; perplexity ratio: that of the precision, over BF16's
  {first['perplexity']['a']:.2f}.
- The text is `examples/eval/text.md`, {p['text_tokens']} tokens written for this purpose (prose, dialogue, questions, a recipe, code, a table,
  JSON, a letter): a text of its own, so that the numbers stay comparable when the documentation changes.
- Windows of {p['window_tokens']} tokens, one every {p['stride_tokens']}; the first {p['prefill_tokens']} tokens of each go through prefill, whose pages are handed to decode and
  converted by the same operations as in serving; the rest is decoded token by token. Every token but the first is scored once.
- `fast` multiplies INT8 and INT4 weights with activations in INT8 (blocks of 32), BF16 and FP8 weights with activations in float32, or of prompts in BF16 where the processor multiplies in BF16;
  `precise` the same with activations in 15 bits for INT8 and INT4;
  `reference` computes everything in float32 from the format's exact values.
- The first row checks the way by which INT4 is made: `examples/eval/gguf_to_hub.py` writes the GGUF file as a hub directory in BF16,
  which `millrace quantize` reads. "g64 quantized again" in decode only is that checkpoint for decode and the GGUF file for prefill.""")
PY
