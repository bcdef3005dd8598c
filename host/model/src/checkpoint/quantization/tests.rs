//! Configs that are understood, and those that are refused by name.

use std::path::Path;

use super::*;

fn read(quantization: &str) -> Result<Quantization, CheckpointError> {
    let text = format!(r#"{{"model_type":"llama","quantization_config":{quantization}}}"#);
    Quantization::read(&Config::from_json(Path::new("config.json"), &text).unwrap())
}

/// The scheme of the only group of a compressed-tensors config.
fn scheme(format: &str, weights: &str) -> Scheme {
    let text = format!(
        r#"{{"quant_method":"compressed-tensors","format":"{format}",
            "config_groups":{{"group_0":{{"targets":["Linear"],"weights":{weights}}}}}}}"#
    );
    read(&text).unwrap().schemes("model.layers.0.mlp.up_proj").unwrap()[0].1
}

#[test]
fn schemes_that_are_read() {
    assert!(matches!(read("null").unwrap(), Quantization::None));
    let fp8 = |text: &str| read(text).unwrap().schemes("x").unwrap()[0].1;
    let blocks = r#"{"quant_method":"fp8","weight_block_size":[128,128],"fmt":"e4m3","activation_scheme":"dynamic"}"#;
    assert_eq!(fp8(blocks), Scheme::Fp8 { scaling: Some(Fp8Scaling::Block) });
    for absent in [r#"{"quant_method":"fp8","activation_scheme":"static"}"#, r#"{"quant_method":"fp8","weight_block_size":null}"#]
    {
        assert_eq!(fp8(absent), Scheme::Fp8 { scaling: None });
    }
    let int4 = |weights: &str| scheme("pack-quantized", weights);
    let group = |group, zero_points| Scheme::Int4 { group, zero_points };
    assert_eq!(
        int4(r#"{"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":32}"#),
        group(Some(32), false)
    );
    assert_eq!(int4(r#"{"num_bits":4,"group_size":128,"symmetric":false}"#), group(Some(128), true));
    assert_eq!(int4(r#"{"num_bits":4,"group_size":-1}"#), group(None, false));
    assert_eq!(int4(r#"{"num_bits":4,"group_size":null,"strategy":"channel","symmetric":false}"#), group(None, true));
    let float = |weights: &str| scheme("float-quantized", weights);
    let fp8 = |scaling| Scheme::Fp8 { scaling: Some(scaling) };
    assert_eq!(float(r#"{"num_bits":8,"type":"float","strategy":"channel"}"#), fp8(Fp8Scaling::Channel));
    assert_eq!(float(r#"{"num_bits":8,"type":"float","strategy":"tensor"}"#), fp8(Fp8Scaling::Tensor));
    assert_eq!(float(r#"{"num_bits":8,"type":"float","strategy":"block","block_structure":[128,128]}"#), fp8(Fp8Scaling::Block));
    assert_eq!(float(r#"{"num_bits":8,"type":"float","strategy":"block","block_structure":"128x128"}"#), fp8(Fp8Scaling::Block));
    assert_eq!(scheme("naive-quantized", r#"{"num_bits":8,"type":"float"}"#), fp8(Fp8Scaling::Tensor));
}

#[test]
fn other_schemes_are_refused_by_name() {
    let group = |format: &str, weights: &str| {
        format!(
            r#"{{"quant_method":"compressed-tensors","format":"{format}",
                "config_groups":{{"a":{{"targets":["Linear"],"weights":{weights}}}}}}}"#
        )
    };
    let cases = [
        (r#"{"quant_method":"awq"}"#.to_owned(), "AWQ"),
        (r#"{"quant_method":"gptq"}"#.to_owned(), "GPTQ"),
        (r#"{"quant_method":"mxfp4"}"#.to_owned(), "MXFP4"),
        (r#"{"quant_method":"modelopt"}"#.to_owned(), "NVFP4"),
        (r#"{"quant_method":"bitsandbytes"}"#.to_owned(), "bitsandbytes"),
        (r#"{"quant_method":"fp8","weight_block_size":[64,64]}"#.to_owned(), "[64,64]"),
        (r#"{"quant_method":"fp8","fmt":"e5m2"}"#.to_owned(), "e5m2"),
        (group("nvfp4-pack-quantized", r#"{"num_bits":4,"type":"float"}"#), "nvfp4-pack-quantized"),
        (group("mxfp4-pack-quantized", r#"{"num_bits":4,"type":"float"}"#), "mxfp4-pack-quantized"),
        (group("int-quantized", r#"{"num_bits":8}"#), "int-quantized"),
        (group("marlin-24", r#"{"num_bits":4}"#), "marlin-24"),
        (group("pack-quantized", r#"{"num_bits":8}"#), "8 bits of type int"),
        (group("pack-quantized", r#"{"num_bits":8,"type":"float"}"#), "pack-quantized weights with 8 bits of type float"),
        (group("float-quantized", r#"{"num_bits":8,"type":"float","strategy":"group","group_size":32}"#), "strategy group"),
        (group("float-quantized", r#"{"num_bits":8,"type":"float","strategy":"block","block_structure":[1,128]}"#), "[1,128]"),
    ];
    for (quantization, named) in cases {
        let message = read(&quantization).unwrap_err().to_string();
        assert!(message.contains(named) && message.contains("FP8 e4m3 with 128x128 blocks"), "{message}");
    }
    let impossible = [
        (r#"{"format":"pack-quantized"}"#.to_owned(), "quant_method"),
        (r#"{"quant_method":"compressed-tensors","format":"pack-quantized"}"#.to_owned(), "config_groups"),
        (
            r#"{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"W4A16":["Linear"]}}"#.to_owned(),
            "W4A16",
        ),
        (group("pack-quantized", r#"{"num_bits":4,"strategy":"group"}"#), "group_size"),
        (group("pack-quantized", r#"{"num_bits":4,"group_size":0}"#), "group_size"),
        (group("pack-quantized", r#"{"num_bits":"4"}"#), "num_bits"),
    ];
    for (quantization, named) in impossible {
        let message = read(&quantization).unwrap_err().to_string();
        assert!(message.contains(named) && message.contains("correct it"), "{message}");
    }
}

#[test]
fn the_surest_group_of_a_module_decides() {
    let text = r#"{"quant_method":"compressed-tensors","format":"mixed-precision","ignore":["lm_head","re:.*router.*"],
        "config_groups":{
            "experts":{"targets":["re:.*mlp\\.experts\\..*"],"format":"pack-quantized",
                "weights":{"num_bits":4,"type":"int","group_size":32}},
            "rest":{"targets":["Linear"],"format":"float-quantized","input_activations":{"num_bits":8,"type":"float","dynamic":true},
                "weights":{"num_bits":8,"type":"float","strategy":"channel"}},
            "last":{"targets":["model.layers.9.mlp.experts.0.down_proj"],"format":"float-quantized",
                "weights":{"num_bits":8,"type":"float","strategy":"tensor"}},
            "kv":{"targets":["LlamaAttention"],"input_activations":{"num_bits":8,"type":"float"}}}}"#;
    let quantization = read(text).unwrap();
    let names = |module: &str| quantization.schemes(module).map(|all| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
    assert_eq!(names("model.layers.0.mlp.experts.3.up_proj").unwrap(), ["experts"]);
    assert_eq!(names("model.layers.9.mlp.experts.0.down_proj").unwrap(), ["last"]);
    assert_eq!(names("model.layers.0.self_attn.q_proj").unwrap(), ["rest"]);
    assert!(names("model.layers.0.mlp.router").unwrap_err().contains("`ignore`"));
    assert!(names("lm_head").unwrap_err().contains("`ignore`"));
}

#[test]
fn wrappers_keep_the_section_in_their_text_config() {
    let text = r#"{"model_type":"kimi_k25","text_config":{"quantization_config":{"quant_method":"fp8"}}}"#;
    let quantization = Quantization::read(&Config::from_json(Path::new("config.json"), text).unwrap()).unwrap();
    assert!(matches!(quantization, Quantization::Fp8 { .. }));
}
