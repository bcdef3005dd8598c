//! Numbers at the end of their range, as only a peer that means harm or is broken would say them.

use millrace_transfer::{
    Accepts, End, Heard, Hello, Incarnation, Receiver, ReceiverAction, Stamped, ToDecode, ToPrefill, TransferId, Window,
};

use crate::world::terms;

/// The last transfer that has a number is refused and forgotten like any other.
#[test]
fn the_last_number_of_a_transfer_does_no_harm() {
    let (own, peer) = (Incarnation { epoch: 2, boot: 2 }, Incarnation { epoch: 1, boot: 1 });
    let accepts = vec![Accepts { format: "f".into(), page_bytes: 1 }];
    let mut receiver = Receiver::new(own, terms(), accepts, Window { slots: 1, transfers: 2 });
    let (last, session) = (TransferId(u64::MAX), u64::MAX);
    receiver.greet(&Hello { incarnation: peer, session, terms: terms(), first: last }).unwrap();
    let mut hear = |message| {
        assert_eq!(receiver.hear(Stamped { from: peer, to: own, session, message }), Ok(Heard::Taken));
        std::iter::from_fn(|| receiver.next_action()).collect::<Vec<_>>()
    };
    let offer = hear(ToDecode::Offer { transfer: last, first: last, tokens: 1, pages: 1, ticket: Vec::new() });
    assert!(matches!(offer[..], [ReceiverAction::Reserve { transfer, .. }] if transfer == last));
    let abort = hear(ToDecode::Abort { transfer: last });
    let ended = ToPrefill::Ended { transfer: last, end: End::Aborted };
    let said = ReceiverAction::Send(Stamped { from: own, to: peer, session, message: ended });
    assert_eq!(abort, [ReceiverAction::Release { transfer: last, stale: false }, said]);
    assert_eq!(hear(ToDecode::Heard { transfer: last }), []);
    assert_eq!(hear(ToDecode::Heard { transfer: last }), []);
}
