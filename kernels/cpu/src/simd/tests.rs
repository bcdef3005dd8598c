//! Vector forms against exact values.

use super::*;

fn isas() -> Vec<Isa> {
    Isa::available()
}

#[test]
fn exponentials_are_accurate_everywhere() {
    // silu_mul(-g) gives exp(g) back; sum_weights of one logit is exp itself.
    for isa in isas() {
        let mut x = -90.0f32;
        while x <= 0.0 {
            let got = f64::from(sum_weights(isa, &[x], 0.0, 1.0, 0.0));
            let want = f64::from(x).exp();
            assert!((got - want).abs() <= 3e-7 * want + 1.7e-38, "{isa}: exp({x}) = {got:e}, want {want:e}");
            x += 0.0137;
        }
        assert_eq!(sum_weights(isa, &[f32::NEG_INFINITY, -200.0], 0.0, 1.0, 0.0), 0.0, "{isa}");
        assert_eq!(sum_weights(isa, &[0.0, -1.0, -2.0], 0.0, 1.0, 0.5), 1.0, "{isa}: a floor keeps what is above it");
    }
}

#[test]
fn rotations_hold_to_131072_radians() {
    for isa in isas() {
        let mut frequencies: Vec<f32> = (0..64).map(|i| 10_000f32.powf(-i as f32 / 64.0)).collect();
        frequencies.extend([1.0, 0.5, std::f32::consts::PI / 4.0]);
        let (mut sines, mut cosines) = (vec![0.0; frequencies.len()], vec![0.0; frequencies.len()]);
        for position in (0..131_072).step_by(127).chain([131_072]) {
            rotation(isa, position, &frequencies, &mut sines, &mut cosines);
            for ((f, s), c) in frequencies.iter().zip(&sines).zip(&cosines) {
                let angle = f64::from(position as f32 * f);
                let error = (f64::from(*s) - angle.sin()).abs().max((f64::from(*c) - angle.cos()).abs());
                assert!(error < 1.5e-7, "{isa}: position {position} frequency {f}: error {error:e}");
            }
        }
    }
}

#[test]
fn scans_find_what_is_not_finite_at_any_place() {
    for isa in isas() {
        for length in [1, 7, 16, 17, 100] {
            for at in 0..length {
                let mut logits = vec![-2.0f32; length];
                logits[at] = 3.0;
                assert_eq!(scan(isa, &logits), Scan { largest: 3.0, fine: true }, "{isa}");
                for bad in [f32::NAN, f32::INFINITY] {
                    logits[at] = bad;
                    assert!(!scan(isa, &logits).fine, "{isa}: {bad} at {at} of {length}");
                }
                logits[at] = f32::NEG_INFINITY;
                assert!(scan(isa, &logits).fine, "{isa}");
            }
        }
    }
}

#[test]
fn scaled_sums_have_the_same_bits_everywhere() {
    for length in [0, 1, 7, 16, 33, 100] {
        let x: Vec<f32> = (0..length).map(|i| (i as f32 * 0.37).sin()).collect();
        let want: Vec<f32> = x.iter().map(|v| 1.1 + v * 0.3).collect();
        for isa in isas() {
            let mut sum = vec![1.1; length];
            add_scaled(isa, &mut sum, &x, 0.3);
            assert_eq!(sum, want, "{isa}, {length} values");
        }
    }
}

#[test]
fn gates_far_from_zero_saturate() {
    for isa in isas() {
        let gate = [-1000.0, -88.0, 88.0, 1000.0, 0.0];
        let mut out = [0.0; 5];
        silu_mul(isa, &gate, &[1.0; 5], &mut out);
        assert!(out[0].abs() < 1e-30 && out[1].abs() < 1e-30, "{isa}: {out:?}");
        assert_eq!(out[2..], [88.0, 1000.0, 0.0], "{isa}");
        silu_mul(isa, &[f32::NAN], &[1.0], &mut out[..1]);
        assert!(out[0].is_nan(), "{isa}: NaN stays");
    }
}

#[test]
fn every_fp8_code_reads_as_its_value_and_nan_as_nan() {
    let codes: Vec<u8> = (0..=255).chain([0x7f, 0x38, 0xff]).collect();
    for isa in isas() {
        let mut values = vec![0.0; codes.len()];
        from_fp8(isa, &codes, &mut values);
        for (code, value) in codes.iter().zip(values) {
            let want = millrace_ops::e4m3_to_f32(*code);
            assert!(value == want || value.is_nan() && want.is_nan(), "{isa}: {code:#x} reads as {value}, want {want}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn transposing_exchanges_rows_and_lanes() {
    use super::vector::{MOST_LANES, Vector};

    #[inline(always)]
    unsafe fn transposed<V: Vector>() -> [f32; MOST_LANES * MOST_LANES] {
        let mut floats = [0.0; MOST_LANES * MOST_LANES];
        // SAFETY: the caller's condition; vectors lie within the floats.
        unsafe {
            let mut rows = [V::splat(0.0); MOST_LANES];
            for (i, row) in rows.iter_mut().enumerate().take(V::LANES) {
                let lanes: [f32; MOST_LANES] = std::array::from_fn(|lane| (i * 100 + lane) as f32);
                *row = V::load(lanes.as_ptr());
            }
            V::transpose(&mut rows);
            for (i, row) in rows.iter().enumerate().take(V::LANES) {
                row.store(floats[i * MOST_LANES..].as_mut_ptr());
            }
        }
        floats
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn with_avx2() -> [f32; MOST_LANES * MOST_LANES] {
        // SAFETY: the features are enabled here.
        unsafe { transposed::<avx2::Avx2>() }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    fn with_avx512() -> [f32; MOST_LANES * MOST_LANES] {
        // SAFETY: the features are enabled here.
        unsafe { transposed::<avx512::Avx512>() }
    }

    for isa in isas() {
        let (floats, lanes) = match isa {
            Isa::Scalar => continue,
            // SAFETY: the machine has the set.
            Isa::Avx2 | Isa::AvxVnni => (unsafe { with_avx2() }, 8),
            // SAFETY: as above.
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx => (unsafe { with_avx512() }, 16),
        };
        for i in 0..lanes {
            for j in 0..lanes {
                assert_eq!(floats[i * MOST_LANES + j], (j * 100 + i) as f32, "{isa}: vector {i} lane {j}");
            }
        }
    }
}
