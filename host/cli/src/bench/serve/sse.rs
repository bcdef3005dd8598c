//! Server-sent events out of bytes as they come: cut anywhere, with any of the three ends of a line. Knows no JSON and no HTTP.
//!
//! Source: the HTML standard, "Interpreting an event stream". One thing differs: an event that the end of the stream cuts off before
//! its blank line counts, because several servers end so.

/// Of one event, its unfinished line included.
pub(super) const MAX_EVENT_BYTES: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// An event is longer than [`MAX_EVENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// Empty where the stream names none.
    pub(super) name: &'a [u8],
    /// The lines of data, with `\n` between them.
    pub(super) data: &'a [u8],
}

#[derive(Debug, Default)]
pub(super) struct Events {
    /// A line whose end has not come.
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was `\r`, which a `\n` may still belong to.
    after_cr: bool,
    /// The first line, which may begin with a byte order mark, is over.
    began: bool,
}

impl Events {
    /// Hands on every event that `bytes` complete.
    ///
    /// # Errors
    /// An event is too long; what comes later is not to be trusted.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut on_event: impl FnMut(Event<'_>)) -> Result<(), TooLong> {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n' || byte == b'\r') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            self.after_cr = bytes[end] == b'\r' && rest.is_empty();
            bytes = if bytes[end] == b'\r' { rest.strip_prefix(b"\n").unwrap_or(rest) } else { rest };
            self.check(line.len())?;
            self.end_line(line, &mut on_event);
        }
        self.check(bytes.len())?;
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// The stream is over: what it left open counts.
    pub(super) fn finish(&mut self, mut on_event: impl FnMut(Event<'_>)) {
        if !self.line.is_empty() {
            self.end_line(&[], &mut on_event);
        }
        self.dispatch(&mut on_event);
    }

    fn check(&self, more: usize) -> Result<(), TooLong> {
        let bytes = self.line.len() + self.name.len() + self.data.len() + more;
        if bytes > MAX_EVENT_BYTES { Err(TooLong) } else { Ok(()) }
    }

    /// `tail` is what came of the line since the last push.
    fn end_line(&mut self, tail: &[u8], on_event: &mut impl FnMut(Event<'_>)) {
        if self.line.is_empty() {
            self.take_line(tail, on_event);
            return;
        }
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(tail);
        self.take_line(&line, on_event);
        line.clear();
        self.line = line;
    }

    fn take_line(&mut self, line: &[u8], on_event: &mut impl FnMut(Event<'_>)) {
        let line = if self.began { line } else { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) };
        self.began = true;
        if line.is_empty() {
            self.dispatch(on_event);
            return;
        }
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // Comments have an empty name; `id` and `retry` are for clients that come back.
            _ => {}
        }
    }

    fn dispatch(&mut self, on_event: &mut impl FnMut(Event<'_>)) {
        if self.has_data {
            on_event(Event { name: &self.name, data: &self.data });
        }
        self.has_data = false;
        self.name.clear();
        self.data.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::drawn::Drawn;

    type Owned = (Vec<u8>, Vec<u8>);

    fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Owned> {
        let (mut events, mut seen) = (Events::default(), Vec::new());
        let mut keep = |event: Event<'_>| seen.push((event.name.to_vec(), event.data.to_vec()));
        for piece in pieces {
            events.push(piece, &mut keep).unwrap();
        }
        events.finish(&mut keep);
        seen
    }

    /// All at once, on text.
    fn naive(bytes: &[u8]) -> Vec<Owned> {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n").replace('\r', "\n") + "\n\n";
        let mut seen = Vec::new();
        let (mut name, mut data) = (String::new(), Vec::new());
        for line in text.split('\n') {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => data.push(value.to_owned()),
                "event" => value.clone_into(&mut name),
                "" if line.is_empty() => {
                    if !data.is_empty() {
                        seen.push((name.clone().into_bytes(), data.join("\n").into_bytes()));
                    }
                    (name, data) = (String::new(), Vec::new());
                }
                _ => {}
            }
        }
        seen
    }

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let parts: [&str; 18] = [
            "data: {\"a\":1}",
            "data:x",
            "data:  two spaces",
            "data",
            "data:",
            ": comment",
            ":",
            "event: error",
            "event",
            "id: 7",
            "\n",
            "\n",
            "\n",
            "\r\n",
            "\r\n",
            "\r",
            "\u{feff}",
            "\u{2028}é: data: y",
        ];
        let mut random = Drawn::new(7);
        let (mut events, mut cuts_in_crlf) = (0, 0);
        for _ in 0..4_000 {
            let count = random.below(24);
            let text: String = (0..count).map(|_| parts[random.below(parts.len())]).collect();
            let bytes = text.as_bytes();
            let mut pieces = Vec::new();
            let mut at = 0;
            while at < bytes.len() {
                let end = (at + random.below(8)).min(bytes.len());
                cuts_in_crlf += usize::from(end > 0 && bytes[end - 1] == b'\r' && bytes.get(end) == Some(&b'\n'));
                pieces.push(&bytes[at..end]);
                at = end;
            }
            let expected = naive(bytes);
            events += expected.len();
            assert_eq!(read(pieces), expected, "{text:?}");
            assert_eq!(read([bytes]), expected, "{text:?}");
        }
        assert!(events > 1_000 && cuts_in_crlf > 100, "{events} {cuts_in_crlf}");
    }

    #[test]
    fn what_is_too_long_is_refused_and_what_just_fits_is_not() {
        let fits = [b"data: ".as_slice(), &vec![b'x'; MAX_EVENT_BYTES - 6]].concat();
        let mut events = Events::default();
        assert_eq!(events.push(&fits, |_| ()), Ok(()));
        assert_eq!(events.push(b"y", |_| ()), Err(TooLong));
        // Many lines of one event are one event.
        let mut events = Events::default();
        let line = [b"data: ".as_slice(), &[b'x'; 1000], b"\n"].concat();
        let refused = (0..2_000).find_map(|count| events.push(&line, |_| ()).err().map(|_| count));
        assert!(refused.is_some_and(|count| count * 1_001 <= MAX_EVENT_BYTES && (count + 2) * 1_001 > MAX_EVENT_BYTES));
        // Many events are not.
        let mut events = Events::default();
        let (mut count, event) = (0, [line.as_slice(), b"\n"].concat());
        for _ in 0..2_000 {
            events.push(&event, |_| count += 1).unwrap();
        }
        assert_eq!(count, 2_000);
    }
}
