//! The rule that settles which format a weight is prepared in: what the stage's recipe asks for, against how and why the
//! checkpoint stores it. Knows neither tensors nor devices.

use millrace_core::StageRecipe;
use millrace_ops::{TensorFormat, WeightFormat};

/// What a matrix is to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A layer's projection: follows the recipe.
    Linear,
    /// Kept in higher precision by intent: embeddings, heads, and linear layers that a quantized checkpoint leaves unquantized.
    Kept,
}

/// The format to prepare a weight in whose parts are stored as `stored` (fused weights have several, at least one).
///
/// A recipe never lowers what is [`Role::Kept`]; the recipe `bf16` alone applies to both roles. Parts that disagree meet in
/// the narrowest format that holds them all: 4-bit codes expand to `int8` without loss; floats and codes, and codes of
/// different kinds, meet in `f32` where the recipe asks for what is stored or a part is stored so, else in `bf16`.
pub fn weight_format(recipe: StageRecipe, role: Role, stored: &[TensorFormat]) -> WeightFormat {
    match (recipe, role) {
        (StageRecipe::Bf16, _) => WeightFormat::Bf16,
        (StageRecipe::Fp8, Role::Linear) => WeightFormat::Fp8,
        (StageRecipe::Int8, Role::Linear) => WeightFormat::Int8,
        (StageRecipe::Int4, Role::Linear) => WeightFormat::Int4,
        (StageRecipe::Stored, _) | (_, Role::Kept) => {
            // A code times a scale has more bits than BF16 holds.
            let wide = if recipe == StageRecipe::Stored { WeightFormat::F32 } else { WeightFormat::Bf16 };
            stored.iter().map(|&f| as_stored(f)).reduce(|a, b| meet(a, b, wide)).unwrap_or(WeightFormat::F32)
        }
    }
}

/// The format of a projection that is taken apart and transposed, so that its stored codes and scales fit no more: what is
/// stored in floats keeps its format; what is stored in codes is held exactly in `f32` where the recipe asks for what is
/// stored, and in `bf16` under the other recipes.
pub(super) fn absorbed_format(recipe: StageRecipe, stored: TensorFormat) -> WeightFormat {
    match (recipe, as_stored(stored)) {
        (StageRecipe::Bf16, _) => WeightFormat::Bf16,
        (_, floats @ (WeightFormat::F32 | WeightFormat::Bf16)) => floats,
        (StageRecipe::Stored, _) => WeightFormat::F32,
        _ => WeightFormat::Bf16,
    }
}

/// The prepared format that changes nothing.
fn as_stored(format: TensorFormat) -> WeightFormat {
    match format {
        TensorFormat::F32 | TensorFormat::F16 => WeightFormat::F32,
        TensorFormat::Bf16 => WeightFormat::Bf16,
        TensorFormat::Q8_0 => WeightFormat::Int8,
        TensorFormat::Q4_0 | TensorFormat::Q4_1 | TensorFormat::Int4Group | TensorFormat::Int4ZeroPoint => WeightFormat::Int4,
        TensorFormat::Fp8Block | TensorFormat::Fp8Channel | TensorFormat::Fp8Tensor => WeightFormat::Fp8,
    }
}

/// The format that holds both; `wide` where no narrower one does.
fn meet(a: WeightFormat, b: WeightFormat, wide: WeightFormat) -> WeightFormat {
    match (a, b) {
        (a, b) if a == b => a,
        (WeightFormat::Int4, WeightFormat::Int8) | (WeightFormat::Int8, WeightFormat::Int4) => WeightFormat::Int8,
        (WeightFormat::F32, _) | (_, WeightFormat::F32) => WeightFormat::F32,
        _ => wide,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_role_and_format() {
        use StageRecipe as R;
        use WeightFormat::{Bf16, F32, Fp8, Int4, Int8};
        // Columns in the order of TensorFormat::ALL: F32, F16, BF16, Q8_0, Q4_0, Q4_1, FP8 per block, channel and tensor,
        // INT4 without and with zero points.
        let kept = [F32, F32, Bf16, Int8, Int4, Int4, Fp8, Fp8, Fp8, Int4, Int4];
        let table = [
            (R::Stored, Role::Linear, kept),
            (R::Stored, Role::Kept, kept),
            (R::Bf16, Role::Linear, [Bf16; 11]),
            (R::Bf16, Role::Kept, [Bf16; 11]),
            (R::Fp8, Role::Linear, [Fp8; 11]),
            (R::Fp8, Role::Kept, kept),
            (R::Int8, Role::Linear, [Int8; 11]),
            (R::Int8, Role::Kept, kept),
            (R::Int4, Role::Linear, [Int4; 11]),
            (R::Int4, Role::Kept, kept),
        ];
        for (recipe, role, row) in table {
            for (stored, wanted) in TensorFormat::ALL.into_iter().zip(row) {
                assert_eq!(weight_format(recipe, role, &[stored]), wanted, "{recipe} {role:?} {stored}");
            }
        }
    }

    #[test]
    fn parts_that_disagree_meet_without_losing_codes() {
        use TensorFormat as T;
        let stored = |parts: &[T]| weight_format(StageRecipe::Stored, Role::Linear, parts);
        assert_eq!(stored(&[T::Q4_1, T::Q4_1, T::Q8_0]), WeightFormat::Int8);
        assert_eq!(stored(&[T::Q4_0, T::Q4_1]), WeightFormat::Int4);
        assert_eq!(stored(&[T::Fp8Block, T::Bf16]), WeightFormat::F32);
        assert_eq!(weight_format(StageRecipe::Int4, Role::Kept, &[T::Fp8Block, T::Bf16]), WeightFormat::Bf16);
        assert_eq!(stored(&[T::Fp8Block, T::Fp8Channel, T::Fp8Tensor]), WeightFormat::Fp8);
        assert_eq!(stored(&[T::Int4Group, T::Int4ZeroPoint]), WeightFormat::Int4);
        assert_eq!(stored(&[T::Int4Group, T::Fp8Channel]), WeightFormat::F32);
        assert_eq!(stored(&[T::Q4_1, T::F16, T::Q4_1]), WeightFormat::F32);
        assert_eq!(weight_format(StageRecipe::Int4, Role::Linear, &[T::Q4_1, T::Q8_0]), WeightFormat::Int4);
    }
}
