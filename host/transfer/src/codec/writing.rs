//! Appends values to a message. Knows no message.

use crate::Incarnation;

/// A message that is being written.
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// A message that begins with the byte that says what it is.
    pub fn of_kind(kind: u8) -> Self {
        Self { bytes: vec![kind] }
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn f32(&mut self, value: f32) -> &mut Self {
        self.u32(value.to_bits())
    }

    /// Bytes with their length. Those past 4 GiB, which no frame can hold, are cut.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.u32(length);
        self.bytes.extend_from_slice(bytes.get(..length as usize).unwrap_or(bytes));
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// Numbers with their count.
    pub fn u32s(&mut self, values: &[u32]) -> &mut Self {
        self.u32(u32::try_from(values.len()).unwrap_or(u32::MAX));
        values.iter().for_each(|&value| {
            self.u32(value);
        });
        self
    }

    pub fn incarnation(&mut self, incarnation: Incarnation) -> &mut Self {
        self.u64(incarnation.epoch).u64(incarnation.boot)
    }

    /// What was written.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}
