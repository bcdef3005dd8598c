//! Records as bytes: each names its fields once, and is written and read by that one list. A field that is not in the list does not
//! compile, since the list takes the record apart and puts it together.

use millrace_core::{RequestId, SeqId, Stage, TenantId};
use millrace_transfer::{CodecError, Decoder, Encoder, Incarnation};

use super::{MAX_NAME_BYTES, MAX_ROWS, unknown};

/// What has one form as bytes. `what` is how an error calls it.
pub(super) trait Value: Sized {
    fn put(&self, out: &mut Encoder);

    /// # Errors
    /// The bytes are none of it.
    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError>;
}

/// `record!(Type { field, .. })`, in the order of the bytes; fields behind `without` are not sent, and have a fixed value where they are
/// read.
macro_rules! record {
    ($Type:ident { $($field:ident),+ $(,)? } $(without { $($absent:ident: $value:expr),+ $(,)? })?) => {
        impl $crate::control::record::Value for $Type {
            fn put(&self, out: &mut millrace_transfer::Encoder) {
                let $Type { $($field,)+ $($($absent: _,)+)? } = self;
                $($crate::control::record::Value::put($field, out);)+
            }

            fn get(
                from: &mut millrace_transfer::Decoder<'_>,
                _what: &'static str,
            ) -> Result<Self, millrace_transfer::CodecError> {
                // In the order of the list: that is how a struct's expressions are evaluated.
                Ok($Type {
                    $($field: $crate::control::record::Value::get(from, concat!(stringify!($Type), ".", stringify!($field)))?,)+
                    $($($absent: $value,)+)?
                })
            }
        }
    };
}
pub(super) use record;

impl Value for u32 {
    fn put(&self, out: &mut Encoder) {
        out.u32(*self);
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        from.u32(what)
    }
}

impl Value for u64 {
    fn put(&self, out: &mut Encoder) {
        out.u64(*self);
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        from.u64(what)
    }
}

impl Value for usize {
    fn put(&self, out: &mut Encoder) {
        out.u64(*self as u64);
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        Ok(Self::try_from(from.u64(what)?).unwrap_or(Self::MAX))
    }
}

impl Value for i32 {
    fn put(&self, out: &mut Encoder) {
        out.u32(self.cast_unsigned());
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        Ok(from.u32(what)?.cast_signed())
    }
}

impl Value for bool {
    fn put(&self, out: &mut Encoder) {
        out.u8(u8::from(*self));
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        from.flag(what)
    }
}

/// A name, or another short word.
impl Value for String {
    fn put(&self, out: &mut Encoder) {
        out.text(self);
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        from.text(MAX_NAME_BYTES, what)
    }
}

impl<T: Value> Value for Option<T> {
    fn put(&self, out: &mut Encoder) {
        out.u8(u8::from(self.is_some()));
        self.iter().for_each(|value| value.put(out));
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        from.flag(what)?.then(|| T::get(from, what)).transpose()
    }
}

/// Lanes, pools, tenants, links.
impl<T: Value> Value for Vec<T> {
    fn put(&self, out: &mut Encoder) {
        out.u32(u32::try_from(self.len()).unwrap_or(u32::MAX));
        self.iter().for_each(|row| row.put(out));
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        // Each has at least its counted numbers; rows are made one by one, so a count alone takes no memory.
        let count = from.count(MAX_ROWS, size_of::<u32>(), what)?;
        (0..count).map(|_| T::get(from, what)).collect()
    }
}

impl Value for Stage {
    fn put(&self, out: &mut Encoder) {
        out.u8(u8::from(*self == Self::Decode));
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        match from.u8(what)? {
            0 => Ok(Self::Prefill),
            1 => Ok(Self::Decode),
            other => unknown(what, other),
        }
    }
}

macro_rules! number {
    ($($Type:ident),+) => {$(
        impl Value for $Type {
            fn put(&self, out: &mut Encoder) {
                self.0.put(out);
            }

            fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
                Value::get(from, what).map(Self)
            }
        }
    )+};
}
number!(SeqId, RequestId, TenantId);

impl Value for Incarnation {
    fn put(&self, out: &mut Encoder) {
        out.incarnation(*self);
    }

    fn get(from: &mut Decoder<'_>, _what: &'static str) -> Result<Self, CodecError> {
        from.incarnation()
    }
}
