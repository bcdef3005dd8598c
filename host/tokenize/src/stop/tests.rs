//! Stop strings against a naive twin, at every cut.

use super::*;

/// What a stream shows in total: pushes cut as given, then a flush.
fn stream(stops: &[&str], parts: &[&str]) -> (String, bool) {
    let mut stop = StopStrings::new(stops.iter().map(|s| (*s).to_owned()).collect());
    let mut shown = String::new();
    let mut stopped = false;
    for part in parts {
        let outcome = stop.push(part);
        assert!(!stopped || outcome.stopped, "a stop is final");
        assert!(!stopped || outcome.text.is_empty(), "nothing is shown after a stop");
        shown.push_str(&outcome.text);
        stopped |= outcome.stopped;
    }
    shown.push_str(&stop.flush());
    // Which one it was: the text that was taken begins with what was shown and it.
    assert_eq!(stop.matched().is_some(), stopped);
    if let Some(matched) = stop.matched() {
        assert!(stops.contains(&matched) && parts.concat().starts_with(&format!("{shown}{matched}")), "{matched}");
    }
    (shown, stopped)
}

/// The definition: the first end of any stop string, and of those ending there the longest.
fn naive(stops: &[&str], text: &str) -> (String, bool) {
    for end in 1..=text.len() {
        let seen = &text.as_bytes()[..end];
        let longest = stops.iter().filter(|s| !s.is_empty() && seen.ends_with(s.as_bytes())).map(|s| s.len()).max();
        if let Some(length) = longest {
            return (text[..end - length].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

#[test]
fn spans_tokens_and_is_not_shown() {
    assert_eq!(stream(&["O P Q"], &[" M", " N", " O", " P", " Q", " R"]), (" M N ".to_owned(), true));
    assert_eq!(stream(&["\nObservation:"], &["Thought\n", "Obs", "ervation", ": x"]), ("Thought".to_owned(), true));
}

#[test]
fn holds_back_only_what_may_become_a_stop() {
    let mut stop = StopStrings::new(vec!["DEFGHIJ".to_owned()]);
    assert_eq!(stop.push("ABC").text, "ABC");
    assert_eq!(stop.push("xDE").text, "x");
    assert_eq!(stop.push("FDE").text, "DEF");
    assert_eq!(stop.flush(), "DE");
    assert_eq!(stop.flush(), "");
}

#[test]
fn the_match_that_ends_first_wins_then_the_longest() {
    assert_eq!(stream(&["abcd", "bc"], &["xabcd"]), ("xa".to_owned(), true));
    assert_eq!(stream(&["c", "abc"], &["xab", "c"]), ("x".to_owned(), true));
    assert_eq!(stream(&["aab"], &["aaa", "ab"]), ("aa".to_owned(), true));
}

#[test]
fn empty_and_absent_stops_change_nothing() {
    let mut stop = StopStrings::new(vec![String::new()]);
    assert_eq!(stop.push("abc"), StopOutcome { text: "abc".to_owned(), stopped: false });
    assert_eq!(stream(&[], &["a", "", "b"]), ("ab".to_owned(), false));
}

#[test]
fn borders_inside_characters() {
    // U+20AC and U+20AD share their first two bytes: a stop on one must not swallow the other.
    assert_eq!(stream(&["€"], &["a₭b"]), ("a₭b".to_owned(), false));
    assert_eq!(stream(&["é!"], &["caf", "é", "!"]), ("caf".to_owned(), true));
    assert_eq!(stream(&["日本語"], &["これは日", "本", "語です"]), ("これは".to_owned(), true));
}

#[test]
fn every_cut_gives_the_naive_answer() {
    let letters = ["a", "b", "é", "è", "€", "₭", "\n"];
    let mut state = 1_u64;
    let mut next = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    for _ in 0..1000 {
        let mut word = |longest: usize| (0..next(longest + 1)).map(|_| letters[next(letters.len())]).collect::<String>();
        let stops: Vec<String> = (0..3).map(|_| word(4)).collect();
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let text = word(14);
        let want = naive(&stops, &text);
        let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        for &one in &borders {
            for &two in borders.iter().filter(|&&two| two >= one) {
                let got = stream(&stops, &[&text[..one], &text[one..two], &text[two..]]);
                assert_eq!(got, want, "{text:?} with {stops:?} cut at {one} and {two}");
            }
        }
    }
}

#[test]
fn a_long_stop_string_costs_no_more_per_byte() {
    let mut stop = StopStrings::new(vec!["a".repeat(1 << 20) + "b"]);
    let start = std::time::Instant::now();
    for _ in 0..100_000 {
        stop.push("aaaaa");
    }
    // A scan of the held text at each push would be 10^12 steps.
    assert!(start.elapsed().as_secs() < 20);
    assert_eq!(stop.flush().len(), 500_000);
}
