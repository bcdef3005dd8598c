//! Every architecture through both engines: chunked prefill, hand-off, token by token in decode, alone and among others, gives
//! the greedy tokens of HF transformers.

mod common;

use common::{Rig, Setup, expected_of};
use millrace_core::KvFormat;

const CHECKPOINTS: [&str; 11] = [
    "llama-int4",
    "odd-llama",
    "odd-qwen2",
    "odd-qwen3",
    "odd-qwen3_moe",
    "odd-glm4_moe",
    "odd-deepseek_v3",
    "odd-glm_5_2",
    "kimi_k25-int4",
    "qwen3_moe-int4",
    "glm_moe_dsa-int4",
];

#[test]
fn greedy_tokens_are_those_of_transformers() {
    for checkpoint in CHECKPOINTS {
        let (ids, greedy) = expected_of(checkpoint);
        for chunk in [5, 48] {
            let rig = Rig::start(Setup { checkpoint, chunk, ..Setup::default() });
            assert_eq!(rig.generate(&ids, 12), greedy, "{checkpoint} in chunks of {chunk}");
            rig.wait_until_empty(0);
        }
    }
}

/// The prompt shares its batches with shorter ones and its tokens stay what they are.
#[test]
fn neighbours_change_nothing() {
    for checkpoint in ["odd-qwen3_moe", "odd-deepseek_v3", "odd-glm_5_2"] {
        let (ids, greedy) = expected_of(checkpoint);
        let rig = Rig::start(Setup { checkpoint, ..Setup::default() });
        let others: Vec<_> = (1..8).map(|n| rig.submit(&ids[..5 * n], 20).unwrap()).collect();
        assert_eq!(rig.generate(&ids, 12), greedy, "{checkpoint}");
        others.iter().for_each(|stream| assert_eq!(stream.finish().unwrap().len(), 20));
        rig.wait_until_empty(0);
    }
}

/// Latents and index keys are converted on their way to decode as keys and values are.
#[test]
fn the_hand_off_converts_every_plane() {
    for checkpoint in ["odd-deepseek_v3", "glm_moe_dsa-int4"] {
        let (ids, greedy) = expected_of(checkpoint);
        for kv in [[KvFormat::F32, KvFormat::Bf16], [KvFormat::Bf16, KvFormat::Fp8], [KvFormat::Fp8, KvFormat::Fp8]] {
            let rig = Rig::start(Setup { checkpoint, kv, ..Setup::default() });
            let tokens = rig.generate(&ids, 12);
            assert_eq!((tokens.len(), kv[0] == KvFormat::Fp8 || tokens[0] == greedy[0]), (12, true), "{checkpoint} {kv:?}");
            rig.wait_until_empty(0);
        }
    }
}
