//! The nearest of some names to one that was mistyped. Knows nothing of what the names mean.

/// Longer names are not compared: the cost grows with the product of the lengths.
const MAX_LENGTH: usize = 64;

/// The candidate that is fewest edits away, if it is near enough to be meant.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: Vec<char> = name.chars().take(MAX_LENGTH + 1).flat_map(char::to_lowercase).collect();
    if name.is_empty() || name.len() > MAX_LENGTH {
        return None;
    }
    let near_enough = (name.len() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= MAX_LENGTH)
        .map(|candidate| (edits(&name, &candidate.to_lowercase().chars().collect::<Vec<char>>()), candidate))
        .filter(|&(distance, _)| distance <= near_enough)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
fn edits(left: &[char], right: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (row, &from) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, &to) in right.iter().enumerate() {
            let mut best = (above[column] + usize::from(from != to)).min(above[column + 1] + 1).min(current[column] + 1);
            let swapped = row > 0 && column > 0 && left[row - 1] == to && from == right[column - 1];
            if swapped {
                best = best.min(before[column - 1] + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut above, current);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_mistakes_find_their_key() {
        let keys = ["recipe", "kv", "pages", "page_tokens", "max_step_tokens"];
        for (typed, meant) in [
            ("recepie", Some("recipe")),
            ("page_token", Some("page_tokens")),
            ("Pages", Some("pages")),
            ("vk", Some("kv")),
            ("max-step-tokens", Some("max_step_tokens")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, keys), meant, "{typed}");
        }
        assert_eq!(nearest(&"a".repeat(100_000), keys), None);
    }

    #[test]
    fn distances_have_known_values() {
        let distance = |a: &str, b: &str| edits(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("same", "same"), 0);
    }
}
