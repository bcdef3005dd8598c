//! Stored bytes as values: decoding of the types that are quantized, and the search for values that are no numbers.
//! Knows no file.

use half::{bf16, f16};
use millrace_ops::e4m3_to_f32;

use super::plan::BLOCK;
use super::source::ElementType;

/// The largest F16 number. No trained weight is near it, and readers refuse scales that are.
const LARGEST: f32 = 65_504.0;

/// The value of each e4m3 code.
pub(super) fn e4m3_values() -> [f32; 256] {
    std::array::from_fn(|code| u8::try_from(code).map_or(0.0, e4m3_to_f32))
}

/// Decodes floats.
pub(super) fn decode_floats(kind: ElementType, bytes: &[u8], values: &mut Vec<f32>) {
    values.clear();
    match kind.name {
        "F32" => values.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
        "F16" => values.extend(bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
        "BF16" => values.extend(bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
        _ => {}
    }
}

/// Decodes rows of FP8 codes that share a row of blocks; `scales` are that row's, F32, one for each 128 columns.
pub(super) fn decode_fp8(table: &[f32; 256], codes: &[u8], scales: &[u8], cols: usize, values: &mut Vec<f32>) {
    values.clear();
    let scales: Vec<f32> = scales.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    for row in codes.chunks(cols) {
        for (block, scale) in row.chunks(BLOCK).zip(&scales) {
            values.extend(block.iter().map(|&code| table[usize::from(code)] * scale));
        }
    }
}

/// Index and value of the first that is no number or larger than any weight.
pub(super) fn first_impossible(values: &[f32]) -> Option<(usize, f32)> {
    let possible = |value: &f32| value.abs() <= LARGEST;
    if values.iter().all(possible) {
        return None;
    }
    values.iter().copied().enumerate().find(|(_, value)| !possible(value))
}

/// Index of the first element that is a NaN or an infinity; None too for types that hold neither. `bytes` are whole elements.
pub(super) fn first_not_finite(kind: ElementType, bytes: &[u8]) -> Option<usize> {
    let all_ones = |word: u16, exponent: u16| word & exponent == exponent;
    match kind.name {
        "F32" => bytes.as_chunks::<4>().0.iter().position(|b| !f32::from_le_bytes(*b).is_finite()),
        "F16" => bytes.as_chunks::<2>().0.iter().position(|b| all_ones(u16::from_le_bytes(*b), 0x7c00)),
        "BF16" => bytes.as_chunks::<2>().0.iter().position(|b| all_ones(u16::from_le_bytes(*b), 0x7f80)),
        "F8_E4M3" => bytes.iter().position(|code| code & 0x7f == 0x7f),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F16: ElementType = ElementType { name: "F16", alignment: 2 };

    #[test]
    fn floats_are_decoded_exactly() {
        let wanted = [0.5f32, -2.0, 0.000_976_562_5];
        let mut values = Vec::new();
        let bytes: Vec<u8> = wanted.iter().flat_map(|v| v.to_le_bytes()).collect();
        decode_floats(ElementType::F32, &bytes, &mut values);
        assert_eq!(values, wanted);
        let bytes: Vec<u8> = wanted.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        decode_floats(F16, &bytes, &mut values);
        assert_eq!(values, wanted);
        let bytes: Vec<u8> = wanted.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        decode_floats(ElementType::BF16, &bytes, &mut values);
        assert_eq!(values, wanted);
    }

    #[test]
    fn fp8_rows_take_the_scale_of_their_block() {
        let scales: Vec<u8> = [2.0f32, 3.0].iter().flat_map(|s| s.to_le_bytes()).collect();
        let mut values = Vec::new();
        decode_fp8(&e4m3_values(), &[0x38; 2 * 130], &scales, 130, &mut values); // 1.0
        assert_eq!((values[127], values[128], values[130 + 127], values[130 + 129]), (2.0, 3.0, 2.0, 3.0));
        assert_eq!(values.len(), 260);
    }

    #[test]
    fn what_is_no_number_is_found() {
        assert_eq!(first_impossible(&[1.0, -65_504.0]), None);
        assert_eq!(first_impossible(&[1.0, 70_000.0, f32::NAN]), Some((1, 70_000.0)));
        assert!(first_impossible(&[f32::NAN]).is_some_and(|(at, value)| at == 0 && value.is_nan()));
        let cases = [
            (ElementType::F32, vec![0, 0, 0x80, 0xff]),
            (F16, vec![1, 0x7c]),
            (ElementType::BF16, vec![0x80, 0x7f]),
            (ElementType::F8_E4M3, vec![0xff]),
        ];
        for (kind, bad) in cases {
            let good = vec![0; bad.len()];
            assert_eq!(first_not_finite(kind, &good), None, "{}", kind.name);
            assert_eq!(first_not_finite(kind, &[good, bad].concat()), Some(1), "{}", kind.name);
        }
        assert_eq!(first_not_finite(ElementType::I64, &[0xff; 16]), None);
    }
}
