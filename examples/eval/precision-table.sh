#!/usr/bin/env bash
# Prints a table of what each precision of SmolLM2 costs in accuracy, measured by `millrace eval compare` on text.md beside this
# file; host/model/QUALITY.md is its output.
#   examples/eval/precision-table.sh [INT4_G64_MODEL] > host/model/QUALITY.md
# INT4_G64_MODEL: the same model with INT4 weights in groups of 64, as `millrace quantize` writes it; its rows are left out without.
# MILLRACE names the program (else target/release/millrace, which is built), MILLRACE_SMOLLM2 the model, MILLRACE_MACHINE the
# machine's kind where /proc/cpuinfo says too little.
set -euo pipefail
cd "$(dirname "$0")/../.."

g64="${1:-}"
model="${MILLRACE_SMOLLM2:-$HOME/.cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf}"
examples/fetch-model.sh >&2
millrace="${MILLRACE:-}"
if [ -z "$millrace" ]; then
  cargo build --release --package millrace >&2
  millrace="${CARGO_TARGET_DIR:-target}/release/millrace"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

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

row "float32 on the stored weights" reference:stored+kv-f32
row "FP8, blocks of 128x128" fast:fp8+kv-bf16
row "INT8" fast:int8+kv-bf16
row "INT4 g32, as stored" fast:int4+kv-bf16
row "INT4 g32, as stored, float32 activations" reference:int4+kv-f32
if [ -n "$g64" ]; then
  row "INT4 g64" fast:int4+kv-bf16 --b-model "$g64"
  row "INT4 g64, float32 activations" reference:int4+kv-f32 --b-model "$g64"
fi
row "BF16, KV FP8" fast:bf16+kv-fp8
row "prefill BF16, decode BF16 with KV FP8" fast:bf16+kv-bf16/bf16+kv-fp8
row "prefill BF16, decode INT4 g32" fast:bf16+kv-bf16/int4+kv-bf16
row "prefill FP8, decode INT4 g32" fast:fp8+kv-bf16/int4+kv-bf16
row "prefill FP8, decode INT4 g32 with KV FP8" fast:fp8+kv-bf16/int4+kv-fp8
row "prefill INT8, decode INT4 g32 with KV FP8 (lane \`fast\`)" fast:int8+kv-bf16/int4+kv-fp8
if [ -n "$g64" ]; then
  row "prefill FP8, decode INT4 g64" fast:fp8+kv-bf16/int4+kv-bf16 --b-decode-model "$g64"
fi

machine="${MILLRACE_MACHINE:-$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | sort -u | head -n 1), $(nproc) cores}"
python3 - "$work" "$machine" "$(date -u +%F)" "$g64" <<'PY'
import json, pathlib, sys

work, machine, date, g64 = pathlib.Path(sys.argv[1]), *sys.argv[2:]
results = [(path.with_suffix(".txt").read_text().strip(), json.loads(path.read_text())) for path in sorted(work.glob("*.json"))]
first = results[0][1]
print(f"""# What precision costs

SmolLM2-135M-Instruct against itself: how far the predictions of each precision are from those of BF16 weights with a BF16 KV
cache in both stages (`{first['a']['precision']}`), and whether the text becomes harder to predict.

**The source is 4-bit already** (a Q4_1 GGUF: 4-bit codes in groups of 32 with a scale and a minimum, 8-bit embedding and head).
BF16 here is those codes widened and rounded, so "INT4 g32" loses nothing in the weights: what its row shows are INT8 activations.
FP8 and INT4 in other groups are quantized a second time, from the 4-bit values. A model of 135 M parameters is also far more
sensitive than the large models that such formats are made for. So the table compares precisions of this file; it does not tell what
quantizing an original checkpoint costs.

| precision | as `eval compare` takes it | KL mean | KL p99 | KL max | same top | perplexity ratio | KL mean in prefill | in decode |
|---|---|---|---|---|---|---|---|---|""")
for what, r in results:
    kl, stage = r["kl_nat"], lambda name: f"{r[name]['kl_nat']['mean']:.5f}" if r[name]["tokens"] else "-"
    print(f"| {what} | `{r['b']['precision']}` | {kl['mean']:.5f} | {kl['p99']:.4f} | {kl['max']:.3f} | {100 * r['same_top']:.2f} % "
          f"| {r['perplexity']['ratio']:.4f} | {stage('prefill')} | {stage('decode')} |")
if not g64:
    print("\nINT4 g64 is left out: it needs a checkpoint in that format as the script's argument (`millrace quantize` writes one from a\nBF16 checkpoint of the model).")
p = first["protocol"]
print(f"""
- Made on {date} by `examples/eval/precision-table.sh{' INT4_G64_MODEL' if g64 else ''}` on: {machine}.
- KL(BF16 || precision) per token in nat over {first['tokens']} tokens; p99: the smallest value that 99 % of the tokens do not exceed;
  same top: tokens for which both think the same token the likeliest; perplexity ratio: that of the precision, over BF16's
  {first['perplexity']['a']:.2f}.
- The text is `examples/eval/text.md`, {p['text_tokens']} tokens written for this purpose (prose, dialogue, questions, a recipe, code, a table,
  JSON, a letter): a text of its own, so that the numbers stay comparable when the documentation changes.
- Windows of {p['window_tokens']} tokens, one every {p['stride_tokens']}; the first {p['prefill_tokens']} tokens of each go through prefill, whose pages are handed to decode and
  converted by the same operations as in serving; the rest is decoded token by token. Every token but the first is scored once.
- `fast` multiplies INT8 and INT4 weights with activations in INT8 (blocks of 32), BF16 and FP8 weights with activations in float32;
  `reference` computes everything in float32 from the format's exact values.""")
PY
