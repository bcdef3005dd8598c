//! Every message goes there and back; random and broken bytes are refused without more memory than they have.

use crate::{
    CHUNK_BYTES, End, Hello, Incarnation, MAX_PAGES, MAX_TICKET_BYTES, PROTOCOL, PageKey, Stamped, Terms, ToDecode, ToPrefill,
    TransferId, Welcome, Window,
};

use super::{CodecError, Decoder, Encoder};

/// SplitMix64: a seed replays.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn stamped<M>(message: M) -> Stamped<M> {
    Stamped { from: Incarnation { epoch: 3, boot: 0x1122 }, to: Incarnation { epoch: 9, boot: u64::MAX }, session: 6, message }
}

fn to_decode() -> Vec<Stamped<ToDecode>> {
    let transfer = TransferId(77);
    let page = PageKey { page: 5, tag: 1 << 60 };
    [
        ToDecode::Offer { transfer, first: TransferId(70), tokens: 100, pages: 4, ticket: vec![1, 2, 3] },
        ToDecode::Write { transfer, index: 3, page, chunk: 2, bytes: vec![9; CHUNK_BYTES] },
        ToDecode::Commit { transfer },
        ToDecode::Abort { transfer },
        ToDecode::Heard { transfer },
    ]
    .map(stamped)
    .into()
}

fn to_prefill() -> Vec<Stamped<ToPrefill>> {
    let transfer = TransferId(u64::MAX);
    let ended = |end| ToPrefill::Ended { transfer, end };
    [
        ToPrefill::Reserved { transfer, pages: (0..40).map(|page| PageKey { page, tag: u64::from(page) << 33 }).collect() },
        ToPrefill::Landed { transfer, index: 1 },
        ended(End::Committed),
        ended(End::Aborted),
        ended(End::StaleTarget),
        ended(End::Refused("no room".into())),
    ]
    .map(stamped)
    .into()
}

fn hello() -> Hello {
    let terms = Terms {
        protocol: PROTOCOL,
        lane: "fast".into(),
        model: "m".into(),
        weights: "ab".into(),
        shape: "keys".into(),
        format: "fp8".into(),
        scales: String::new(),
        page_tokens: 32,
        page_bytes: 1 << 20,
    };
    Hello { incarnation: Incarnation { epoch: 1, boot: 2 }, session: 8, terms, first: TransferId(4) }
}

#[test]
fn every_message_goes_there_and_back() {
    for message in to_decode() {
        assert_eq!(Stamped::<ToDecode>::decode(&message.encode()), Ok(message));
    }
    for message in to_prefill() {
        assert_eq!(Stamped::<ToPrefill>::decode(&message.encode()), Ok(message));
    }
    let welcome =
        Welcome { incarnation: Incarnation { epoch: 1, boot: 2 }, session: 8, window: Window { slots: 3, transfers: 4 } };
    let mut out = Encoder::of_kind(0);
    hello().encode(&mut out);
    welcome.encode(&mut out);
    let bytes = out.finish();
    let mut input = Decoder::new(&bytes[1..]);
    assert_eq!((Hello::decode(&mut input), Welcome::decode(&mut input)), (Ok(hello()), Ok(welcome)));
    assert_eq!(input.finish(), Ok(()));
}

#[test]
fn a_message_that_is_cut_or_goes_on_is_none() {
    for message in to_decode().iter().map(Stamped::<ToDecode>::encode) {
        let lengths = (0..message.len().min(200)).chain([message.len() - 1]);
        lengths.for_each(|length| assert!(Stamped::<ToDecode>::decode(&message[..length]).is_err(), "{length}"));
        let longer: Vec<u8> = message.iter().copied().chain([0]).collect();
        assert_eq!(Stamped::<ToDecode>::decode(&longer), Err(CodecError::Trailing(1)));
        assert!(Stamped::<ToPrefill>::decode(&message).is_err(), "the two directions do not read alike");
    }
}

#[test]
fn a_length_is_not_believed() {
    let whole = to_decode().remove(0).encode();
    let at = whole.len() - 3 - 4;
    let mut huge = whole.clone();
    huge[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Stamped::<ToDecode>::decode(&huge), Err(CodecError::Long("the ticket")));
    huge[at..at + 4].copy_from_slice(&1000_u32.to_le_bytes());
    assert_eq!(Stamped::<ToDecode>::decode(&huge), Err(CodecError::Short("the ticket")));
    let reserved = to_prefill().remove(0).encode();
    let mut huge = reserved[..53].to_vec();
    huge[49..53].copy_from_slice(&60_000_u32.to_le_bytes());
    assert_eq!(Stamped::<ToPrefill>::decode(&huge), Err(CodecError::Short("the reserved pages")));
}

/// What is as long as it may be goes there and back; what is longer does not, however many bytes there are.
#[test]
fn bounds_are_exact() {
    let transfer = TransferId(1);
    let offer = |bytes| stamped(ToDecode::Offer { transfer, first: transfer, tokens: 1, pages: 1, ticket: vec![7; bytes] });
    let write = |bytes| {
        stamped(ToDecode::Write { transfer, index: 0, page: PageKey { page: 0, tag: 1 }, chunk: 0, bytes: vec![7; bytes] })
    };
    let reserved = |pages| stamped(ToPrefill::Reserved { transfer, pages: vec![PageKey { page: 0, tag: 1 }; pages] });
    for longest in [offer(MAX_TICKET_BYTES), write(CHUNK_BYTES)] {
        assert_eq!(Stamped::<ToDecode>::decode(&longest.encode()), Ok(longest));
    }
    assert_eq!(Stamped::<ToDecode>::decode(&offer(MAX_TICKET_BYTES + 1).encode()), Err(CodecError::Long("the ticket")));
    assert_eq!(Stamped::<ToDecode>::decode(&write(CHUNK_BYTES + 1).encode()), Err(CodecError::Long("the part of a page")));
    let longest = reserved(MAX_PAGES as usize);
    assert_eq!(Stamped::<ToPrefill>::decode(&longest.encode()), Ok(longest));
    let longer = reserved(MAX_PAGES as usize + 1).encode();
    assert_eq!(Stamped::<ToPrefill>::decode(&longer), Err(CodecError::Long("the reserved pages")));
    let mut out = Encoder::of_kind(0);
    Hello { terms: Terms { shape: "s".repeat(9 << 10), ..hello().terms }, ..hello() }.encode(&mut out);
    assert_eq!(Hello::decode(&mut Decoder::new(&out.finish()[1..])), Err(CodecError::Long("the shape")));
}

/// A side may have more to say about a refusal than the other takes: it is cut, at a character, and the message is one.
#[test]
fn a_long_reason_is_cut_to_what_the_other_side_takes() {
    let refused = |why: String| stamped(ToPrefill::Ended { transfer: TransferId(1), end: End::Refused(why) });
    let long = refused(format!("x{}", "é".repeat(1_000)));
    let cut = refused(format!("x{}", "é".repeat(511)));
    assert_eq!(Stamped::<ToPrefill>::decode(&long.encode()), Ok(cut));
    let longest = refused("y".repeat(1_024));
    assert_eq!(Stamped::<ToPrefill>::decode(&longest.encode()), Ok(longest.clone()));
    let mut bytes = longest.encode();
    let at = bytes.len() - 1_024 - 4;
    bytes[at..at + 4].copy_from_slice(&1_025_u32.to_le_bytes());
    bytes.push(b'y');
    assert_eq!(Stamped::<ToPrefill>::decode(&bytes), Err(CodecError::Long("the reason")));
}

/// What stands for yes or no is one of both.
#[test]
fn numbers_and_flags_are_taken_as_they_are_meant() {
    let flags = [0, 1, 2].map(|byte| Decoder::new(&[byte]).flag("a flag"));
    assert_eq!(flags, [Ok(false), Ok(true), Err(CodecError::Unknown { what: "a flag", value: 2 })]);
    let mut out = Encoder::of_kind(0);
    out.u32s(&[5, 6, 7]);
    let bytes = out.finish();
    let list = |bytes, most| Decoder::new(bytes).u32s(most, "a list");
    assert_eq!(list(&bytes[1..], 3), Ok(vec![5, 6, 7]));
    assert_eq!(list(&bytes[1..], 2), Err(CodecError::Long("a list")));
    assert_eq!(list(&bytes[1..bytes.len() - 1], 3), Err(CodecError::Short("a list")));
}

/// Random bytes and messages with random bytes in them: an answer, whatever it is, and what is read is written alike.
#[test]
fn random_bytes_never_do_harm() {
    let mut random = Random(0x5eed);
    let (to_decode, to_prefill) = (to_decode(), to_prefill());
    let messages = to_decode.iter().map(Stamped::<ToDecode>::encode).chain(to_prefill.iter().map(Stamped::<ToPrefill>::encode));
    let messages: Vec<Vec<u8>> = messages.collect();
    for round in 0..200_000 {
        let mut bytes: Vec<u8> = if round % 2 == 0 {
            (0..random.below(90)).map(|_| random.next() as u8).collect()
        } else {
            messages[random.below(messages.len())].iter().copied().take(120).collect()
        };
        for _ in 0..random.below(4) {
            if !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] = random.next() as u8;
            }
        }
        if let Ok(message) = Stamped::<ToDecode>::decode(&bytes) {
            assert_eq!(message.encode(), bytes);
        }
        if let Ok(message) = Stamped::<ToPrefill>::decode(&bytes) {
            assert_eq!(message.encode(), bytes);
        }
        let _ = Hello::decode(&mut Decoder::new(&bytes));
        let _ = Welcome::decode(&mut Decoder::new(&bytes));
    }
}
