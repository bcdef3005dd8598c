//! How a plan writes its numbers. Knows no figure.

/// 1234567 as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number and what it counts: `0 tokens`, `1 token`, `1,024 tokens`.
pub(super) fn counted(number: u64, one: &str) -> String {
    format!("{} {one}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// What somebody gave, cut to a few words of one line.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Bytes in GiB (2^30 bytes) with two decimals.
pub fn gib(bytes: u64) -> String {
    let hundredths = (u128::from(bytes) * 100 + (1 << 29)) >> 30;
    let whole = u64::try_from(hundredths / 100).unwrap_or(u64::MAX);
    format!("{}.{:02}", thousands(whole), hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_rounded() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(thousands(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!([0, 1 << 30, 755_617_140_416].map(gib), ["0.00", "1.00", "703.72"]);
        assert_eq!([(1 << 30) - 1, u64::MAX].map(gib), ["1.00", "17,179,869,184.00"]);
        assert_eq!([0, 1, 2, 1024].map(|count| counted(count, "token")), ["0 tokens", "1 token", "2 tokens", "1,024 tokens"]);
        assert_eq!(shown("a\nb\tc"), "a b c");
        // Half of a hundredth rounds up.
        assert_eq!([5_368_709, 5_368_710].map(gib), ["0.00", "0.01"]);
    }
}
