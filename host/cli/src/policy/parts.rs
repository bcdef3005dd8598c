//! Texts of templates that depend on what a policy exports beside its decision. It does not know what the texts say.

use millrace_policy_wasm::contract::Beside;

/// Keeps what stands between `{{#NAME}}` and `{{/NAME}}` where the project has that, and leaves it out elsewhere; a mark that is alone on
/// its line goes with the line. `beside` is either interface, `plain` none, `unheard` a policy that hands over and does not hear.
pub(super) fn parts(text: &str, beside: &[Beside]) -> String {
    let (hears, hands_over) = (beside.contains(&Beside::Feedback), beside.contains(&Beside::Handover));
    let names = [
        ("feedback", hears),
        ("handover", hands_over),
        ("beside", hears || hands_over),
        ("plain", !hears && !hands_over),
        ("unheard", hands_over && !hears),
    ];
    names.into_iter().fold(text.to_owned(), |text, (name, is_kept)| {
        let (from, to) = (format!("{{{{#{name}}}}}"), format!("{{{{/{name}}}}}"));
        let text = [&from, &to].iter().fold(text, |text, mark| text.replace(&format!("\n{mark}\n"), &format!("\n{mark}")));
        let mut pieces = text.split(&from);
        let first = pieces.next().unwrap_or_default().to_owned();
        pieces.fold(first, |kept, piece| {
            let (inner, rest) = piece.split_once(&to).unwrap_or(("", piece));
            kept + if is_kept { inner } else { "" } + rest
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_kept_where_they_are_wanted() {
        let text = "a\n{{#feedback}}\nb\n{{/feedback}}\nc{{#handover}}, d{{/handover}}{{#plain}}, e{{/plain}}\n{{#unheard}}\nf\n{{/unheard}}\n";
        let of = |beside: &[Beside]| parts(text, beside);
        assert_eq!(of(&[]), "a\nc, e\n");
        assert_eq!(of(&[Beside::Feedback]), "a\nb\nc\n");
        assert_eq!(of(&[Beside::Handover]), "a\nc, d\nf\n");
        assert_eq!(of(&[Beside::Feedback, Beside::Handover]), "a\nb\nc, d\n");
    }
}
