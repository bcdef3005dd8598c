//! Plans of the production case, from the configurations in `examples/configs`, against published sizes.
//!
//! Where a checkpoint's own index states the bytes of its tensors, the plan meets them exactly:
//! - GLM-5.2-FP8: `metadata.total_size` 755,617,140,416 with 118,629 tensors.
//! - Kimi K2 Thinking and the text core of K2.5 and K2.6: 1,026,408,232,448 parameters, 594,205,904,896 bytes.
//!
//! Figures of the published case are rounded, so they are met within the rounding that the tests state.

mod common;

use std::path::Path;

use millrace_core::Stage;
use millrace_model::plan::{
    Capacity, Counted, HostGpus, KvBytes, KvShare, Plan, PlanError, PlanKv, PlanRequest, StageChoice, TensorClass, WeightBytes,
    WeightRecipe, tensors, usual_reserve,
};
use millrace_model::spec::ModelSpec;
use millrace_model::{Config, spec_of};

const GIB: f64 = (1u64 << 30) as f64;
/// What the driver reports of an H200.
const H200: u64 = (140.4 * GIB) as u64;

fn example(name: &str) -> ModelSpec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/configs").join(name);
    spec_of(&Config::read(&path).unwrap()).unwrap()
}

fn kimi() -> ModelSpec {
    example("kimi-k2.6.json")
}

fn glm() -> ModelSpec {
    example("glm-5.2.json")
}

fn recipe(text: &str) -> WeightRecipe {
    text.parse().unwrap()
}

fn bytes(spec: &ModelSpec, text: &str, counted: Counted) -> u64 {
    WeightBytes::of(&tensors(spec).unwrap(), recipe(text), counted).bytes()
}

fn request(gpus: usize, pool_bytes: Option<u64>) -> PlanRequest {
    let host = HostGpus { gpus, bytes_per_gpu: H200, reserve_bytes: usual_reserve(H200), pool_bytes };
    let stage = |kv| StageChoice { recipe: None, kv };
    let (prefill, decode) = (stage(PlanKv::Bf16), stage(PlanKv::Fp8));
    PlanRequest { host, page_tokens: 64, counted: Counted::ModelAndPrediction, prefill, decode }
}

/// Whether `figure` is `published` to the last digit that was published.
fn is_rounded(figure: f64, published: f64, last_digit: f64) -> bool {
    (figure - published).abs() <= last_digit / 2.0
}

#[test]
fn parameters_of_kimi_are_exact() {
    let groups = tensors(&kimi()).unwrap();
    let total: u64 = groups.iter().map(|group| group.parameters()).sum();
    assert_eq!(total, 1_026_408_232_448);
    assert!(groups.iter().all(|group| group.prediction_count == 0));
    let of = |class| groups.iter().filter(|group| group.class == class).map(|group| group.parameters()).sum::<u64>();
    // 60 layers x 384 experts x 3 x 7168 x 2048.
    assert_eq!(of(TensorClass::RoutedExperts), 60 * 384 * 3 * 7168 * 2048);
    let attention = of(TensorClass::Attention) + of(TensorClass::Compression) + of(TensorClass::Absorbed);
    // q_a, q_b, kv_a, kv_b, o of a layer: 101.12M.
    assert_eq!(attention, 61 * (7168 * 1536 + 1536 * 64 * 192 + 7168 * 576 + 512 * 64 * 256 + 64 * 128 * 7168));
}

#[test]
fn parameters_of_glm_are_exact() {
    let groups = tensors(&glm()).unwrap();
    let model: u64 = groups.iter().map(|group| group.parameters()).sum();
    let prediction: u64 = groups.iter().map(|group| group.prediction_parameters()).sum();
    assert!(is_rounded(model as f64 / 1e9, 743.4, 0.1), "{model}");
    // All values but the 76 correction biases of 256, as counted from the headers of the FP8 checkpoint.
    assert_eq!(model + prediction - 76 * 256, 753_329_921_024);
    // Layer 78 holds an indexer of its own, which the index of the checkpoint shows: 21 + 1.
    let wk = groups.iter().find(|group| group.name == "self_attn.indexer.wk").unwrap();
    assert_eq!((wk.count, wk.prediction_count, wk.rows, wk.cols), (21, 1, 128, 6144));
    // Every tensor of the checkpoint, with one scale tensor for each that is FP8.
    let fp8 = |class| recipe("fp8:glm").format_of(class) == recipe("fp8").format;
    let count: u64 = groups.iter().map(|g| (g.count + g.prediction_count) * if fp8(g.class) { 2 } else { 1 }).sum();
    assert_eq!(count, 118_629);
}

#[test]
fn bytes_of_the_published_checkpoints_are_exact() {
    // GLM-5.2-FP8: 751,226,191,872 e4m3 codes, 2,103,729,152 BF16 values, 45,872,560 f32 values (scales and correction biases).
    let groups = tensors(&glm()).unwrap();
    let fp8 = WeightBytes::of(&groups, recipe("fp8:glm"), Counted::ModelAndPrediction);
    assert_eq!(fp8.bytes(), 755_617_140_416);
    let parts: Vec<(u64, u64)> = fp8.sums.iter().map(|sum| (sum.parameters, sum.scales)).collect();
    assert_eq!(parts, [(751_226_191_872, 45_872_560 - 76 * 256), (2_103_729_152, 0), (76 * 256, 0)]);
    assert_eq!(bytes(&glm(), "fp8:glm", Counted::Model), 745_584_507_456);
    // Kimi K2.6, text: the checkpoint holds a shape of two i32 beside each packed tensor, which nothing needs in memory.
    let shapes = 60 * 384 * 3 * 2 * 4;
    assert_eq!(bytes(&kimi(), "int4-g32:kimi", Counted::Model) + shapes, 594_205_904_896);
}

#[test]
fn weights_of_the_production_case() {
    let gib = |spec: &ModelSpec, text: &str, counted| bytes(spec, text, counted) as f64 / GIB;
    let both = Counted::ModelAndPrediction;
    // 1,014,686,023,680 x (0.5 + 2/32) B + 11,722,208,768 x 2 B.
    assert!(is_rounded(gib(&kimi(), "int4-g32:kimi", both), 553.4, 0.1));
    // 734,439,407,616 routed x (0.5 + 2/32) B + 18,890,532,864 x 2 B, MTP included.
    assert!(is_rounded(gib(&glm(), "int4-g32:kimi", both), 419.9, 0.1));
    // The published arithmetic says 755.5 GB, 703.6 GiB; the checkpoint itself, to the byte, is 755.617 GB, 703.72 GiB.
    let fp8 = gib(&glm(), "fp8:glm", both);
    assert!((fp8 / 703.6 - 1.0).abs() < 2e-4, "{fp8}");
    assert!(is_rounded(fp8, 703.723, 0.001), "{fp8}");
    // Other candidates of the published 421 GB, in GB.
    let gb = |text: &str| bytes(&glm(), text, Counted::Model) as f64 / 1e9;
    assert!(is_rounded(gb("int4-g64:kimi"), 422.2, 0.1), "{}", gb("int4-g64:kimi"));
    assert!(is_rounded(gb("int4-g32:glm"), 421.1, 0.1), "{}", gb("int4-g32:glm"));
}

#[test]
fn kv_bytes_per_token_by_plane() {
    let planes = |spec: &ModelSpec, format: PlanKv| -> Vec<u64> {
        let kv = KvBytes::of(spec, format, 8, 64).unwrap();
        assert_eq!(kv.share, KvShare::Replicated);
        assert_eq!(kv.bytes_per_token(), kv.bytes_per_token_and_gpu);
        kv.planes.iter().map(|plane| plane.bytes_per_token).collect()
    };
    assert_eq!(planes(&kimi(), PlanKv::Bf16), [61 * 576 * 2]);
    assert_eq!(planes(&kimi(), PlanKv::Fp8), [61 * 576]);
    assert_eq!(planes(&kimi(), PlanKv::Fp8Of656), [61 * 656]);
    assert_eq!(planes(&glm(), PlanKv::Bf16), [78 * 1152, 21 * 128 * 2]);
    // Index keys stay in BF16.
    assert_eq!(planes(&glm(), PlanKv::Fp8), [78 * 576, 21 * 128 * 2]);
    // 51,168 + 2,772 = 53,940.
    assert_eq!(planes(&glm(), PlanKv::Fp8Of656), [78 * 656, 21 * (128 + 4)]);
    // A page of 64 tokens and one layer: 41,984 B, and 8,448 B of index keys.
    let page = KvBytes::of(&glm(), PlanKv::Fp8Of656, 8, 64).unwrap().page_bytes_per_gpu;
    assert_eq!(page, 78 * 41_984 + 21 * 8_448);
}

/// The same 44.9 GiB hold 686k tokens in BF16 and 1.37M in FP8, and only 1.20M in the 656-byte layout.
#[test]
fn kimis_pool_of_the_production_case() {
    let pool = (44.9 * GIB) as u64;
    let plan = Plan::new(&kimi(), &request(8, Some(pool))).unwrap();
    let tokens = |format: PlanKv| Capacity::of(pool, plan.kv.iter().find(|kv| kv.format == format).unwrap()).tokens;
    // floor(48,211,007,897 / 4,497,408) = 10,719 pages; floor(48,211,007,897 / 2,248,704) = 21,439 pages.
    assert_eq!((tokens(PlanKv::Bf16), tokens(PlanKv::Fp8)), (10_719 * 64, 21_439 * 64));
    assert!(is_rounded(tokens(PlanKv::Bf16) as f64, 686e3, 1e3));
    assert!(is_rounded(tokens(PlanKv::Fp8) as f64, 1.37e6, 1e4));
    assert!(is_rounded(tokens(PlanKv::Fp8Of656) as f64, 1.20e6, 1e4));
    // GLM 5.2 holds more per token: floor(48,211,007,897 / 6,094,848) = 7,910 pages, / 3,219,456 = 14,974.
    let glm = Plan::new(&glm(), &request(8, Some(pool))).unwrap();
    let pages: Vec<u64> = glm.kv.iter().map(|kv| Capacity::of(pool, kv).pages).collect();
    assert_eq!(pages[..2], [7_910, 14_974]);
    // 69.2 GiB of weights, 44.9 of pages and the reserve are within a GPU.
    assert_eq!(plan.decode.recipe, recipe("int4-g32:kimi"));
    assert!(is_rounded(plan.decode.room.weights_per_gpu as f64 / GIB, 69.2, 0.1));
    assert_eq!((plan.decode.room.missing(), plan.decode.capacity.tokens), (0, 21_439 * 64));
}

#[test]
fn glm_in_both_precisions_does_not_fit_one_host() {
    let plan = Plan::new(&glm(), &request(8, None)).unwrap();
    assert_eq!((plan.prefill.recipe, plan.decode.recipe), (recipe("fp8:glm"), recipe("int4-g32:kimi")));
    let together = &plan.together;
    assert!(is_rounded(together.usable as f64 / GIB, 1123.2, 0.1));
    // 703.72 + 419.94, where the published arithmetic adds 703.6 and 419.9 to 1,123.5.
    let apart = together.weights_apart() as f64 / GIB;
    assert!((apart / 1123.5 - 1.0).abs() < 2e-4, "{apart}");
    assert!(together.weights_apart() > together.usable && !together.fits());
    assert!(together.verdict().contains("do not fit") && together.verdict().contains("1,123.66"), "{}", together.verdict());
    // In one process the embedding, head, norms, routers and eh_proj are there once: 2,103,729,152 x 2 B + 19,456 x 4 B.
    assert_eq!(together.shared.bytes(), 2_103_729_152 * 2 + 19_456 * 4);
    // That leaves less than half a GiB per GPU, for two pools, activations and runtime.
    assert!((together.usable - together.weights_in_one_process()) / 8 < 1 << 29);
    // Each stage alone fits, and twice the GPUs hold both.
    assert_eq!((plan.prefill.room.missing(), plan.decode.room.missing()), (0, 0));
    assert!(Plan::new(&glm(), &request(16, None)).unwrap().together.fits());
}

#[test]
fn stages_in_one_precision_share_their_weights() {
    let stored = StageChoice { recipe: Some(recipe("int4-g32:kimi")), kv: PlanKv::Bf16 };
    let plan = Plan::new(&kimi(), &PlanRequest { prefill: stored, ..request(8, None) }).unwrap();
    assert_eq!(plan.together.weights_in_one_process(), plan.decode.weights.bytes());
    assert!(plan.together.fits());
    // Half of what weights and both reserves leave, for each stage.
    let left = H200 - plan.decode.room.weights_per_gpu - 2 * usual_reserve(H200);
    assert_eq!(plan.together.pool_per_gpu, left / 2);
    let [prefill, decode] = plan.together.capacities;
    assert_eq!((prefill.tokens, decode.tokens), (left / 2 / 4_497_408 * 64, left / 2 / 2_248_704 * 64));
}

#[test]
fn mtp_can_be_left_out() {
    let without = Plan::new(&glm(), &PlanRequest { counted: Counted::Model, ..request(8, None) }).unwrap();
    assert_eq!(without.prefill.weights.bytes(), 745_584_507_456);
    let with = Plan::new(&glm(), &request(8, None)).unwrap();
    assert!(with.prefill.capacity.tokens < without.prefill.capacity.tokens);
    for plan in [&with, &without] {
        let fp8 = plan.recipes.iter().find(|row| row.recipe == recipe("fp8:glm")).unwrap();
        assert_eq!((fp8.model.bytes(), fp8.prediction.bytes()), (745_584_507_456, 10_032_632_960));
    }
}

#[test]
fn every_formula_comes_to_its_figure() {
    for spec in [kimi(), glm()] {
        let plan = Plan::new(&spec, &request(8, None)).unwrap();
        for row in &plan.recipes {
            assert_eq!(evaluate(&row.model.formula()), row.model.bytes(), "{}", row.model.formula());
        }
        for plane in plan.kv.iter().flat_map(|kv| &kv.planes) {
            assert_eq!(evaluate(&plane.formula), plane.bytes_per_token, "{}", plane.formula);
        }
    }
}

/// Sums of products of the numbers in a formula; words, units and notes of one word in brackets mean nothing.
fn evaluate(formula: &str) -> u64 {
    let product = |text: &str| -> f64 {
        let numbers = text.split_whitespace().filter_map(|word| word.replace(',', "").parse::<f64>().ok());
        numbers.product()
    };
    let (before, inner) = match formula.split_once('(') {
        Some((before, rest)) if before.ends_with("x ") => (before, rest.trim_end_matches(')')),
        _ => return formula.split(" + ").map(|term| product(term.split('(').next().unwrap()) as u64).sum(),
    };
    (product(before) * inner.split(" + ").map(product).sum::<f64>()) as u64
}

#[test]
fn grouped_query_attention_divides_its_heads() {
    let path = common::fixture("qwen3_moe-int4").join("config.json");
    let spec = spec_of(&Config::read(&path).unwrap()).unwrap();
    let kv = |format, gpus| KvBytes::of(&spec, format, gpus, 32).unwrap();
    let millrace_model::spec::AttentionSpec::GroupedQuery(attention) = spec.attention else { panic!("{:?}", spec.attention) };
    let (layers, heads, width) = (spec.layers.len() as u64, attention.kv_heads as u64, attention.head_dim as u64);
    // Keys and values, each with a BF16 scale per token and head in FP8.
    assert_eq!(kv(PlanKv::Bf16, 1).bytes_per_token(), layers * 2 * heads * width * 2);
    assert_eq!(kv(PlanKv::Fp8, 1).bytes_per_token(), layers * 2 * heads * (width + 2));
    let divided = kv(PlanKv::Fp8, attention.kv_heads);
    assert_eq!(divided.share, KvShare::Heads { per_gpu: 1, of: attention.kv_heads });
    assert_eq!(divided.bytes_per_token_and_gpu * heads, divided.bytes_per_token());
    assert_eq!(evaluate(&divided.planes[0].formula), divided.planes[0].bytes_per_token);
    assert!(matches!(KvBytes::of(&spec, PlanKv::Fp8Of656, 1, 32), Err(PlanError::KvFormat { .. })));
}

/// Every architecture's inventory is what its checkpoint holds: names, shapes and bytes against the fixtures' headers.
#[test]
fn inventories_are_what_checkpoints_hold() {
    let mut seen = 0;
    for path in common::fixtures().iter().filter(|path| path.join("config.json").exists()) {
        let config = Config::read(&path.join("config.json")).unwrap();
        let spec = ModelSpec { prediction_layers: 0, ..spec_of(&config).unwrap() };
        let planned: u64 = tensors(&spec).unwrap().iter().map(|group| group.parameters()).sum();
        let file = std::fs::read(path.join("model.safetensors")).unwrap();
        let held = safetensors::SafeTensors::deserialize(&file).unwrap().tensors();
        let parameters = held.iter().map(|(name, view)| {
            let elements: u64 = view.shape().iter().map(|n| *n as u64).product();
            match name.as_str() {
                name if name.contains("_scale") || name.ends_with("_shape") => 0,
                name if name.ends_with("_packed") => elements * 8,
                _ => elements,
            }
        });
        assert_eq!(parameters.sum::<u64>(), planned, "{}", common::name(path));
        seen += 1;
    }
    assert!(seen >= 12, "{seen}");
}

#[test]
fn what_cannot_be_planned_is_said() {
    let llama = spec_of(&Config::read(&common::fixture("llama-bf16").join("config.json")).unwrap()).unwrap();
    let kimi_recipe = StageChoice { recipe: Some(recipe("int4-g64:kimi")), kv: PlanKv::Bf16 };
    let error = Plan::new(&llama, &PlanRequest { decode: kimi_recipe, ..request(1, None) }).unwrap_err();
    assert!(error.to_string().contains("int4-g64:generic"), "{error}");
    let layout = StageChoice { recipe: None, kv: PlanKv::Fp8Of656 };
    let error = Plan::new(&llama, &PlanRequest { prefill: layout, ..request(1, None) }).unwrap_err();
    assert!(error.to_string().contains("use bf16 or fp8"), "{error}");
    for page_tokens in [0, 8, 65, 8192] {
        let error = Plan::new(&llama, &PlanRequest { page_tokens, ..request(1, None) }).unwrap_err();
        assert_eq!(error, PlanError::PageTokens { tokens: page_tokens });
        assert!(!error.to_string().contains('\n') && error.to_string().contains("no multiple of 16 from 16 to 4096"), "{error}");
    }
    let page = |tokens| PlanError::PageTokens { tokens }.to_string();
    assert!(page(0).starts_with("a page of 0 tokens is no") && page(1).starts_with("a page of 1 token is no"));
    assert!(matches!(Plan::new(&llama, &request(0, None)), Err(PlanError::OutOfRange { .. })));
    let huge = ModelSpec { vocab: 1 << 28, hidden: 1 << 24, ..llama };
    let error = Plan::new(&huge, &request(1, None)).unwrap_err();
    assert!(matches!(error, PlanError::TooLarge { tensor: "embed_tokens", .. }));
    assert!(error.to_string().contains("asks for 1 tensor `embed_tokens`"), "{error}");
}

/// One of a kind is written as one.
#[test]
fn formulas_are_right_in_number() {
    let llama = spec_of(&Config::read(&common::fixture("llama-bf16").join("config.json")).unwrap()).unwrap();
    let one = ModelSpec { layers: llama.layers[..1].to_vec(), prediction_layers: 1, ..llama };
    let plan = Plan::new(&one, &request(1, None)).unwrap();
    assert!(plan.kv[0].planes[0].formula.starts_with("1 layer x 2 heads x "), "{}", plan.kv[0].planes[0].formula);
    let unknowns = plan.unknowns.join("\n");
    assert!(unknowns.contains("MTP: 1 layer is counted with the weights"), "{unknowns}");
    let two = Plan::new(&ModelSpec { prediction_layers: 2, ..one }, &request(1, None)).unwrap().unknowns.join("\n");
    assert!(two.contains("MTP: 2 layers are counted with the weights"), "{two}");
    let capacity = Capacity { pages: 1, tokens: 64 };
    assert!(capacity.formula(100, &plan.kv[0]).ends_with("= 1 page x 64 tokens"), "{}", capacity.formula(100, &plan.kv[0]));
}

#[test]
fn a_model_without_experts_has_plans_of_its_own() {
    let llama = spec_of(&Config::read(&common::fixture("llama-tied-bf16").join("config.json")).unwrap()).unwrap();
    let plan = Plan::new(&llama, &request(1, None)).unwrap();
    assert_eq!((plan.prefill.recipe, plan.decode.recipe), (recipe("fp8"), recipe("int4-g32")));
    assert_eq!(plan.recipes.len(), 7);
    assert_eq!(plan.kv.len(), 2);
    assert!(plan.tensors.iter().all(|group| group.class != TensorClass::Head));
    assert_eq!((plan.prefill.stage, plan.decode.stage), (Stage::Prefill, Stage::Decode));
    assert!(plan.unknowns.iter().all(|line| !line.contains("MTP") && !line.contains("kv_b_proj")), "{:?}", plan.unknowns);
}

#[test]
fn unknowns_are_said_with_what_they_would_change() {
    let unknowns = Plan::new(&glm(), &request(8, None)).unwrap().unknowns.join("\n");
    // q_a, kv_a, indexer, router, norms and eh_proj of 79 layers in FP8: 1.45 GiB, of which 7/8 come on top of an even split.
    for part in ["14.04 GiB per GPU", "engines leave", "kv_b_proj", "speculates", "3.54 GiB larger on disk", "704 elements"] {
        assert!(unknowns.contains(part), "{part} in\n{unknowns}");
    }
    let kimi = Plan::new(&kimi(), &request(8, None)).unwrap().unknowns.join("\n");
    assert!(kimi.contains("vision") && !kimi.contains("MTP"), "{kimi}");
}
