//! Takes values off a message from outside. Knows no message.

use super::CodecError;
use crate::Incarnation;

/// A message that is being read.
#[derive(Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(CodecError::Short(what))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CodecError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(CodecError::Short(what))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// # Errors
    /// The message ends before it; so for all that follow.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, CodecError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    /// # Errors
    /// As above.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    /// # Errors
    /// As above.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// # Errors
    /// As above.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, CodecError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Any bits; whoever needs a finite number checks.
    ///
    /// # Errors
    /// As above.
    pub fn f32(&mut self, what: &'static str) -> Result<f32, CodecError> {
        Ok(f32::from_bits(self.u32(what)?))
    }

    /// # Errors
    /// As above, or neither 0 nor 1.
    pub fn flag(&mut self, what: &'static str) -> Result<bool, CodecError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(CodecError::Unknown { what, value: u64::from(other) }),
        }
    }

    /// # Errors
    /// As above, or more than `most` bytes.
    pub fn bytes(&mut self, most: usize, what: &'static str) -> Result<&'a [u8], CodecError> {
        let length = self.u32(what)? as usize;
        if length > most {
            return Err(CodecError::Long(what));
        }
        self.take(length, what)
    }

    /// # Errors
    /// As above, or no UTF-8.
    pub fn text(&mut self, most: usize, what: &'static str) -> Result<String, CodecError> {
        let bytes = self.bytes(most, what)?;
        std::str::from_utf8(bytes).map(ToOwned::to_owned).map_err(|_| CodecError::Text(what))
    }

    /// How many items follow, each of at least `least_bytes`.
    ///
    /// # Errors
    /// As above, or more than `most`, or more than the message has bytes for.
    pub fn count(&mut self, most: usize, least_bytes: usize, what: &'static str) -> Result<usize, CodecError> {
        let count = self.u32(what)? as usize;
        if count > most {
            return Err(CodecError::Long(what));
        }
        if count.saturating_mul(least_bytes) > self.rest.len() {
            return Err(CodecError::Short(what));
        }
        Ok(count)
    }

    /// # Errors
    /// As for [`Self::count`].
    pub fn u32s(&mut self, most: usize, what: &'static str) -> Result<Vec<u32>, CodecError> {
        let count = self.count(most, size_of::<u32>(), what)?;
        (0..count).map(|_| self.u32(what)).collect()
    }

    /// # Errors
    /// The message ends before it.
    pub fn incarnation(&mut self) -> Result<Incarnation, CodecError> {
        Ok(Incarnation { epoch: self.u64("an epoch")?, boot: self.u64("a boot nonce")? })
    }

    /// # Errors
    /// Bytes are left.
    pub fn finish(self) -> Result<(), CodecError> {
        if self.rest.is_empty() { Ok(()) } else { Err(CodecError::Trailing(self.rest.len())) }
    }
}
