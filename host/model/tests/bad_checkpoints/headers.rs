//! Headers of safetensors files: lengths, JSON, offsets.

use super::common::hub::{Hub, with_header};
use super::{Case, common, refuse};

/// A hub directory whose weights are these bytes.
fn bytes(wrong: &'static str, names: &'static [&'static str], bytes: impl Fn() -> Vec<u8> + 'static) -> Case {
    Case::new(wrong, names, move |directory| {
        Hub::open(&common::fixture("llama-bf16")).write_config(directory);
        std::fs::write(directory.join("model.safetensors"), bytes()).unwrap();
        directory.to_path_buf()
    })
}

/// Likewise with this header before eight bytes of data.
fn header(wrong: &'static str, names: &'static [&'static str], header: &'static str) -> Case {
    bytes(wrong, names, move || with_header(header, &[0; 8]))
}

#[test]
fn lengths() {
    refuse(vec![
        bytes("an empty file", &["model.safetensors: file: it is empty"], Vec::new),
        bytes(
            "a file shorter than the header's length",
            &["safetensors header at byte 0: its length takes 8 bytes, the file holds 4"],
            || b"1234".to_vec(),
        ),
        bytes("a header of no bytes", &["safetensors header at byte 8: EOF while parsing a value;"], || {
            0u64.to_le_bytes().to_vec()
        }),
        bytes("a header longer than memory", &["at byte 0: it claims 18446744073709551615 bytes"], || {
            u64::MAX.to_le_bytes().to_vec()
        }),
        bytes("a header longer than the file", &["claims 1048576 bytes, the file has 0 more"], || {
            (1u64 << 20).to_le_bytes().to_vec()
        }),
        bytes("a header longer than is allowed", &["claims 104857600 bytes", "67108864 are allowed"], || {
            (100u64 << 20).to_le_bytes().to_vec()
        }),
        bytes("a header length that ends within the JSON", &["safetensors header at byte 208:", "EOF while"], || {
            let mut bytes = std::fs::read(common::fixture("llama-bf16").join("model.safetensors")).unwrap();
            bytes[..8].copy_from_slice(&200u64.to_le_bytes());
            bytes
        }),
        bytes("data cut short by a byte", &["tensor `lm_head.weight` at byte ", "the file holds 623871 bytes of data"], || {
            let mut bytes = std::fs::read(common::fixture("llama-bf16").join("model.safetensors")).unwrap();
            bytes.pop();
            bytes
        }),
        bytes(
            "a byte behind the data",
            &["tensor data at byte ", "describes 623872 bytes of data, the file holds 623873"],
            || {
                let mut bytes = std::fs::read(common::fixture("llama-bf16").join("model.safetensors")).unwrap();
                bytes.push(0);
                bytes
            },
        ),
    ]);
}

#[test]
fn json() {
    refuse(vec![
        header("JSON that does not end", &["safetensors header at byte 9: EOF"], "{"),
        header("JSON that is no object", &["at byte 8: invalid type", "expected an object of tensors;"], "[1]"),
        header("a word that is no JSON", &["safetensors header at byte 14: tensor `a`: expected ident;"], r#"{"a":no}"#),
        header("a word on the third line", &["safetensors header at byte 20: tensor `a`: expected ident;"], "{\n\n  \"a\" : no}"),
        header("a tensor that is no object", &["at byte 13: tensor `a`: invalid type"], r#"{"a":[]}"#),
        header(
            "a tensor without its offsets",
            &["at byte 38: tensor `a`: dtype, shape or data_offsets is missing;"],
            r#"{"a":{"dtype":"U8","shape":[8]}}"#,
        ),
        header("three offsets", &["at byte 59: tensor `a`"], r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}}"#),
        header("a negative size", &["at byte 37: tensor `a`"], r#"{"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}}"#),
        header("a fraction", &["tensor `a`"], r#"{"a":{"dtype":"U8","shape":[8.5],"data_offsets":[0,8]}}"#),
        header("a size beyond 64 bits", &["tensor `a`"], r#"{"a":{"dtype":"U8","shape":[1e30],"data_offsets":[0,8]}}"#),
        header(
            "a type that does not exist",
            &["tensor `a`: dtype `Q9` does not exist;"],
            r#"{"a":{"dtype":"Q9","shape":[8],"data_offsets":[0,8]}}"#,
        ),
        header(
            "a name that appears twice",
            &["safetensors header at byte 63: tensor `a` appears twice;"],
            r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#,
        ),
        header(
            "nine dimensions",
            &["tensor `a`", "more than 8 dimensions"],
            r#"{"a":{"dtype":"U8","shape":[8,1,1,1,1,1,1,1,1],"data_offsets":[0,8]}}"#,
        ),
        bytes("ten thousand brackets", &["safetensors header", "EOF"], || {
            with_header(&format!(r#"{{"__metadata__":{}"#, "[".repeat(10_000)), &[])
        }),
        bytes("ten thousand brackets for a shape", &["tensor `a`", "invalid type"], || {
            with_header(&format!(r#"{{"a":{{"dtype":"U8","shape":{}"#, "[".repeat(10_000)), &[])
        }),
        bytes("two million dimensions", &["tensor `a`", "more than 8 dimensions"], || {
            let ones = "1,".repeat(2_000_000);
            with_header(&format!(r#"{{"a":{{"dtype":"U8","shape":[{ones}1],"data_offsets":[0,1]}}}}"#), &[0])
        }),
        bytes("a name of two thousand bytes", &["a name of more than 1024 bytes"], || {
            with_header(&format!(r#"{{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#, "x".repeat(2000)), &[0])
        }),
        bytes("text that is no UTF-8", &["safetensors header"], || {
            let mut bytes = with_header(r#"{"a?":1}"#, &[]);
            bytes[11] = 0xff;
            bytes
        }),
    ]);
}

#[test]
fn offsets() {
    let two = |a: &str, b: &str| {
        let tensor = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}"#);
        format!(r#"{{"a":{},"b":{}}}"#, tensor(a), tensor(b))
    };
    let pair = |wrong, names, a: &'static str, b: &'static str| bytes(wrong, names, move || with_header(&two(a, b), &[0; 12]));
    refuse(vec![
        // The data begins at byte 113.
        pair("tensors that overlap", &["tensor `b` at byte 115", "begin at 2, within `a`, whose end at 4"], "[0,4]", "[2,6]"),
        pair("tensors at the same place", &["tensor `b` at byte 113", "within `a`"], "[0,4]", "[0,4]"),
        pair("a hole between tensors", &["tensor `b` at byte 117", "begin at 5, not at 4"], "[0,4]", "[5,9]"),
        pair("a tensor beyond the end", &["tensor `b` at byte 126", "11 to 15, the file holds 12 bytes"], "[0,4]", "[11,15]"),
        pair("a tensor far beyond the end", &["tensor `b`: its data_offsets are 90 to 94"], "[0,4]", "[90,94]"),
        pair("data behind the last tensor", &["tensor data at byte 121", "8 bytes of data, the file holds 12"], "[0,4]", "[4,8]"),
        pair("data before the first tensor", &["tensor `a` at byte 113", "begin at 1, not at 0"], "[1,5]", "[5,9]"),
        header(
            "an end before its beginning",
            &["tensor `a`", "data_offsets are 8 to 0"],
            r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}}"#,
        ),
        header(
            "fewer bytes than the shape needs",
            &["tensor `a`", "BF16 with shape [8] needs 16 bytes"],
            r#"{"a":{"dtype":"BF16","shape":[8],"data_offsets":[0,8]}}"#,
        ),
        header(
            "more bytes than the file holds",
            &["tensor `a`", "0 to 16, the file holds 8 bytes of data"],
            r#"{"a":{"dtype":"BF16","shape":[8],"data_offsets":[0,16]}}"#,
        ),
        header(
            "a shape whose product overflows",
            &["tensor `a`", "no whole number of bytes that fits"],
            r#"{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
        ),
        header(
            "half a byte of 4-bit elements",
            &["tensor `a`", "no whole number of bytes"],
            r#"{"a":{"dtype":"F4","shape":[15],"data_offsets":[0,8]}}"#,
        ),
        bytes("sizes whose sum overflows", &["tensor `t0`", "the file holds 4 bytes"], || {
            let step = (1u64 << 61) - 1;
            let tensor = |i: u64, bytes: u64| {
                let (begin, end) = (i * step, i * step + bytes);
                format!(r#""t{i}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{begin},{end}]}}"#)
            };
            let tensors: Vec<String> = (0..8).map(|i| tensor(i, step)).chain([tensor(8, 7)]).collect();
            with_header(&format!("{{{}}}", tensors.join(",")), &[0; 4])
        }),
    ]);
}
