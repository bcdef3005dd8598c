//! What a component carries that nothing reads which runs it. It knows sections by their number, not what is in them.

/// A component without the custom sections around its modules: names of its inner instances and who wrote it, which nothing that
/// runs reads. What is in its modules stays. None where it does not read as a list of sections.
pub(crate) fn without_custom(component: &[u8]) -> Option<Vec<u8>> {
    const HEADER_BYTES: usize = 8;
    const CUSTOM: u8 = 0;
    let mut kept = component.get(..HEADER_BYTES)?.to_vec();
    let mut rest = component.get(HEADER_BYTES..)?;
    while let [id, after_id @ ..] = rest {
        let (length, length_bytes) = leb128(after_id)?;
        let (section, next) = rest.split_at_checked((1 + length_bytes).checked_add(length)?)?;
        if *id != CUSTOM {
            kept.extend_from_slice(section);
        }
        rest = next;
    }
    Some(kept)
}

/// A 32-bit number, and how many bytes it takes.
fn leb128(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    for (index, byte) in bytes.iter().take(5).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_sections_around_modules_go_and_everything_else_stays() {
        let header = *b"\0asm\x0d\0\x01\0";
        let of = |sections: &[&[u8]]| [&header[..], &sections.concat()[..]].concat();
        let module = [&[1, 0x81, 0x01][..], &[0; 129]].concat();
        let with = of(&[&[0, 2, 1, b'x'], &module, &[7, 1, 9], &[0, 3, 1, b'y', 4]]);
        assert_eq!(without_custom(&with), Some(of(&[&module, &[7, 1, 9]])));
        assert_eq!(without_custom(&of(&[])), Some(of(&[])));
        for damaged in [of(&[&[7, 2, 9]]), of(&[&[7]]), of(&[&[7, 0x80, 0x80, 0x80, 0x80, 0x80, 0]]), header[..4].to_vec()] {
            assert_eq!(without_custom(&damaged), None, "{damaged:?}");
        }
    }
}
