//! Two machines, the pools behind them and a network between them, small and whole enough to be compared, hashed and judged.
//!
//! The network keeps every message that was ever sent and may deliver any of them at any time, again and again: that is loss,
//! delay, duplication, reordering and replay in one. A connection only decides whether the machines listen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millrace_transfer::{
    Accepts, Heard, Incarnation, Outcome, PROTOCOL, PageKey, Receiver, ReceiverAction, Refused, Sender, SenderAction, Stamped,
    Terms, ToDecode, ToPrefill, TransferId, Window,
};

/// What a page of a sequence holds: its number and the page's; never garbage.
fn content(seq: u8, index: u32) -> u8 {
    1 + seq * 16 + index as u8
}

/// What a source page holds once it was released.
const GARBAGE: u8 = 0;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Prefilled; not offered, or to be offered again.
    Waiting,
    Offered(TransferId),
    Over(Outcome),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sequence {
    pub(crate) stage: Stage,
    pages: u32,
    /// False once the source pages were given to somebody else.
    source: bool,
    cancelled: bool,
}

/// A page of the decode pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Page {
    tag: u64,
    owner: Option<TransferId>,
    holds: Option<u8>,
    /// Taken from its owner behind its back.
    stolen: bool,
}

/// What the decode engine has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Decode {
    pages: Vec<Page>,
    tags: u64,
    wishes: BTreeMap<TransferId, (u8, u32)>,
    reserved: BTreeMap<TransferId, (u8, Vec<PageKey>)>,
    staged: BTreeMap<u32, u8>,
    imports: BTreeSet<(TransferId, u32, u32, PageKey)>,
    /// How often each sequence was attached, by whoever sent it.
    attached: BTreeMap<(u64, u8), u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Size {
    pub(crate) sequences: u8,
    pub(crate) pages_each: u32,
    pub(crate) pool_pages: u32,
    pub(crate) window: Window,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    size: Size,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    sender_epoch: u64,
    receiver_epoch: u64,
    pub(crate) sequences: Vec<Sequence>,
    fetches: BTreeSet<(TransferId, u32)>,
    decode: Decode,
    pub(crate) to_decode: BTreeSet<Stamped<ToDecode>>,
    pub(crate) to_prefill: BTreeSet<Stamped<ToPrefill>>,
    /// The first rule that was broken, and how.
    pub(crate) broken: Option<(Rule, String)>,
}

/// What must hold whatever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// No source page is released while the receiver may still ask for it, and no page of the receiver while it is being written.
    ReleasedTooSoon,
    /// A sequence is committed once, and only with every page in its place.
    Committed,
    /// Nothing lands in a page whose tag moved on.
    TagMovedOn,
    /// A message or hello of another life or connection changes nothing.
    Stale,
    /// Whoever keeps the rules is never called out of order, and a living peer never refused.
    Order,
}

fn life(epoch: u64) -> Incarnation {
    Incarnation { epoch, boot: epoch * 1000 + 7 }
}

pub(crate) fn terms() -> Terms {
    let word = |text: &str| text.to_owned();
    Terms {
        protocol: PROTOCOL,
        lane: word("l"),
        model: word("m"),
        weights: word("w"),
        shape: word("s"),
        format: word("f"),
        scales: word("n"),
        page_tokens: 1,
        page_bytes: 1,
    }
}

fn receiver(epoch: u64, window: Window) -> Receiver {
    Receiver::new(life(epoch), terms(), vec![Accepts { format: "f".into(), page_bytes: 1 }], window)
}

impl World {
    pub(crate) fn new(size: Size) -> Self {
        let sequence = |_| Sequence { stage: Stage::Waiting, pages: size.pages_each, source: true, cancelled: false };
        let mut world = Self {
            size,
            sender: Sender::new(life(1)),
            receiver: receiver(2, size.window),
            sender_epoch: 1,
            receiver_epoch: 2,
            sequences: (0..size.sequences).map(sequence).collect(),
            fetches: BTreeSet::new(),
            decode: Decode::default(),
            to_decode: BTreeSet::new(),
            to_prefill: BTreeSet::new(),
            broken: None,
        };
        world.decode.pages = vec![Page::default(); size.pool_pages as usize];
        world
    }

    fn breaks(&mut self, rule: Rule, why: String) {
        self.broken.get_or_insert((rule, why));
    }

    // --- what may happen -------------------------------------------------------------------------------------------

    pub(crate) fn can_connect(&self) -> bool {
        !(self.sender.is_connected() && self.receiver.is_connected())
    }

    /// A connection, if both sides agree to it. False: not now.
    pub(crate) fn connect(&mut self) -> bool {
        self.sender.disconnected();
        match self.receiver.greet(&self.sender.hello(&terms())) {
            Ok(welcome) => {
                if let Err(stale) = self.sender.connected(welcome) {
                    self.breaks(Rule::Order, format!("a living peer was refused: {stale}"));
                }
                self.settle();
                true
            }
            Err(Refused::Settling) => {
                self.settle();
                false
            }
            Err(other) => {
                self.breaks(Rule::Order, format!("a living peer was refused: {other}"));
                false
            }
        }
    }

    pub(crate) fn disconnect(&mut self) {
        self.sender.disconnected();
        self.receiver.disconnected();
        self.settle();
    }

    /// The prefill process dies and comes back with nothing; its sequences are over for good.
    pub(crate) fn kill_sender(&mut self) {
        self.receiver.disconnected();
        self.receiver.peer_dead(life(self.sender_epoch));
        self.sender_epoch += 2;
        self.sender = Sender::new(life(self.sender_epoch));
        self.fetches.clear();
        let sequence = Sequence { stage: Stage::Waiting, pages: self.size.pages_each, source: true, cancelled: false };
        self.sequences = vec![sequence; self.sequences.len()];
        self.settle();
    }

    /// The decode process dies and comes back with an empty pool. `told`: a supervisor saw it and says so.
    pub(crate) fn kill_receiver(&mut self, told: bool) {
        self.sender.disconnected();
        if told {
            self.sender.peer_dead(life(self.receiver_epoch));
        }
        self.receiver_epoch += 2;
        self.receiver = receiver(self.receiver_epoch, self.size.window);
        // What ran there is lost with it, and may run again.
        self.decode = Decode { pages: vec![Page::default(); self.size.pool_pages as usize], ..Decode::default() };
        self.settle();
    }

    pub(crate) fn can_offer(&self, seq: usize) -> bool {
        self.sequences[seq].stage == Stage::Waiting && !self.sequences[seq].cancelled && self.sender.has_room()
    }

    pub(crate) fn offer(&mut self, seq: usize) {
        let pages = self.sequences[seq].pages;
        let ticket: Arc<[u8]> = Arc::from([seq as u8].as_slice());
        match self.sender.offer(pages, pages, ticket) {
            Some(transfer) => self.sequences[seq].stage = Stage::Offered(transfer),
            None => self.breaks(Rule::Order, "an offer was refused although there is room".into()),
        }
        self.settle();
    }

    pub(crate) fn can_cancel(&self, seq: usize) -> bool {
        matches!(self.sequences[seq].stage, Stage::Offered(_)) && !self.sequences[seq].cancelled
    }

    pub(crate) fn cancel(&mut self, seq: usize) {
        let Stage::Offered(transfer) = self.sequences[seq].stage else { return };
        self.sequences[seq].cancelled = true;
        self.sender.cancel(transfer);
        self.settle();
    }

    pub(crate) fn fetches(&self) -> Vec<(TransferId, u32)> {
        self.fetches.iter().copied().collect()
    }

    /// A copy out of the prefill pool ends.
    pub(crate) fn fetch(&mut self, transfer: TransferId, index: u32) {
        self.fetches.remove(&(transfer, index));
        if let Some((stamp, page)) = self.sender.fetched(transfer, index) {
            let seq = self.sequences.iter().position(|sequence| sequence.stage == Stage::Offered(transfer));
            let byte = match seq {
                Some(seq) if self.sequences[seq].source => content(seq as u8, index),
                _ => GARBAGE,
            };
            let message = ToDecode::Write { transfer, index, page, chunk: 0, bytes: vec![byte] };
            self.to_decode.insert(Stamped { from: stamp.from, to: stamp.to, session: stamp.session, message });
        }
        self.settle();
    }

    pub(crate) fn imports(&self) -> Vec<(TransferId, u32, u32, PageKey)> {
        self.decode.imports.iter().copied().collect()
    }

    /// A copy into the decode pool ends: the device looks at the tag.
    pub(crate) fn import(&mut self, import: (TransferId, u32, u32, PageKey)) {
        let (transfer, index, slot, key) = import;
        self.decode.imports.remove(&import);
        let staged = self.decode.staged.get(&slot).copied();
        let page = &mut self.decode.pages[key.page as usize];
        if page.tag == key.tag {
            page.holds = staged;
            self.receiver.imported(transfer, index);
        } else {
            self.receiver.stale_target(transfer, index);
        }
        self.settle();
    }

    pub(crate) fn wishes(&self) -> Vec<TransferId> {
        self.decode.wishes.keys().copied().collect()
    }

    /// The decode pool has room for a wish, if it has.
    pub(crate) fn reserve(&mut self, transfer: TransferId) {
        let Some(&(seq, pages)) = self.decode.wishes.get(&transfer) else { return };
        let free: Vec<usize> = (0..self.decode.pages.len()).filter(|&id| self.decode.pages[id].owner.is_none()).collect();
        if free.len() < pages as usize {
            return;
        }
        self.decode.wishes.remove(&transfer);
        let mut keys = Vec::new();
        for id in free.into_iter().take(pages as usize) {
            self.decode.tags += 1;
            let tag = self.decode.tags;
            self.decode.pages[id] = Page { tag, owner: Some(transfer), holds: None, stolen: false };
            keys.push(PageKey { page: id as u32, tag });
        }
        if self.receiver.reserved(transfer, keys.clone()) {
            self.decode.reserved.insert(transfer, (seq, keys));
        } else {
            self.free(&keys);
        }
        self.settle();
    }

    /// Takes a reserved page away, as a bug in the pool would.
    pub(crate) fn can_steal(&self) -> bool {
        self.decode.pages.iter().any(|page| page.owner.is_some() && !page.stolen)
    }

    pub(crate) fn steal(&mut self) {
        self.decode.tags += 1;
        let tag = self.decode.tags;
        if let Some(page) = self.decode.pages.iter_mut().find(|page| page.owner.is_some() && !page.stolen) {
            *page = Page { tag, owner: page.owner, holds: Some(200), stolen: true };
        }
    }

    /// Delivers a message, which stays in the network.
    pub(crate) fn deliver_to_decode(&mut self, message: &Stamped<ToDecode>) {
        let current = message.from == life(self.sender_epoch) && message.to == life(self.receiver_epoch);
        let before = (!current).then(|| self.receiver.clone());
        match self.receiver.hear(message.clone()) {
            Ok(Heard::Taken) if !current => self.breaks(Rule::Stale, "a message of another life was taken".into()),
            Ok(_) => {}
            Err(error) => self.breaks(Rule::Order, format!("a sender that keeps the rules was called out of order: {error}")),
        }
        if before.is_some_and(|before| before != self.receiver) {
            self.breaks(Rule::Stale, "a message of another life changed the receiver".into());
        }
        self.settle();
    }

    pub(crate) fn deliver_to_prefill(&mut self, message: &Stamped<ToPrefill>) {
        let current = message.to == life(self.sender_epoch) && message.from == life(self.receiver_epoch);
        let before = (!current).then(|| self.sender.clone());
        if let Err(error) = self.sender.hear(message) {
            self.breaks(Rule::Order, format!("a receiver that keeps the rules was called out of order: {error}"));
        }
        if before.is_some_and(|before| before != self.sender) {
            self.breaks(Rule::Stale, "a message of another life changed the sender".into());
        }
        self.settle();
    }

    /// An earlier life of the sender, stopped for a while, says hello again.
    pub(crate) fn zombie_hello(&mut self) {
        if self.sender_epoch <= 1 || self.receiver.peer() != Some(life(self.sender_epoch)) {
            return;
        }
        let before = self.receiver.clone();
        let mut zombie = Sender::new(life(self.sender_epoch - 2));
        if self.receiver.greet(&zombie.hello(&terms())).is_ok() || self.receiver != before {
            self.breaks(Rule::Stale, "an earlier life of the sender was heard".into());
        }
    }

    // --- the owners, who carry out at once what they are asked ------------------------------------------------------

    fn settle(&mut self) {
        while let Some(action) = self.sender.next_action() {
            match action {
                SenderAction::Send(message) => {
                    self.to_decode.insert(message);
                }
                SenderAction::Fetch { transfer, index } => {
                    self.fetches.insert((transfer, index));
                }
                SenderAction::End { transfer, outcome } => self.ended(transfer, outcome),
            }
        }
        while let Some(action) = self.receiver.next_action() {
            match action {
                ReceiverAction::Send(message) => {
                    self.to_prefill.insert(message);
                }
                ReceiverAction::Reserve { transfer, pages, ticket, .. } => {
                    self.decode.wishes.insert(transfer, (ticket[0], pages));
                }
                ReceiverAction::Stage { slot, bytes, .. } => {
                    self.decode.staged.insert(slot, bytes[0]);
                }
                ReceiverAction::Import { transfer, index, slot, page } => {
                    self.decode.imports.insert((transfer, index, slot, page));
                }
                ReceiverAction::Attach { transfer } => self.attach(transfer),
                ReceiverAction::Release { transfer, .. } => self.release(transfer),
            }
        }
    }

    /// Whoever releases a source page has an answer for each copy of it, or the peer's life is over.
    fn ended(&mut self, transfer: TransferId, outcome: Outcome) {
        let Some(seq) = self.sequences.iter().position(|sequence| sequence.stage == Stage::Offered(transfer)) else {
            return self.breaks(Rule::Committed, format!("transfer {transfer} ended twice or never was"));
        };
        if outcome == Outcome::PeerLost {
            // Its pages stay: it may be offered to the next life of the peer.
            self.sequences[seq].stage =
                if self.sequences[seq].cancelled { Stage::Over(Outcome::Cancelled) } else { Stage::Waiting };
            self.fetches.retain(|&(fetched, _)| fetched != transfer);
            return;
        }
        if self.decode.reserved.contains_key(&transfer) || self.decode.wishes.contains_key(&transfer) {
            self.breaks(
                Rule::ReleasedTooSoon,
                format!("the source of transfer {transfer} was released while the receiver has it open"),
            );
        }
        let attached = self.decode.attached.get(&(self.sender_epoch, seq as u8)).copied().unwrap_or(0);
        if matches!(outcome, Outcome::Committed(_)) != (attached > 0) {
            self.breaks(Rule::Committed, format!("sequence {seq} ended as {outcome:?} and was attached {attached} times"));
        }
        self.sequences[seq].stage = Stage::Over(outcome);
        self.sequences[seq].source = false;
        self.fetches.retain(|&(fetched, _)| fetched != transfer);
    }

    fn attach(&mut self, transfer: TransferId) {
        let Some((seq, keys)) = self.decode.reserved.remove(&transfer) else {
            return self.breaks(Rule::Committed, format!("transfer {transfer} was committed without pages, or twice"));
        };
        for (index, key) in (0..).zip(&keys) {
            let page = &self.decode.pages[key.page as usize];
            let lost = page.tag != key.tag;
            if !lost && page.holds != Some(content(seq, index)) {
                let why = format!("page {index} of sequence {seq} holds {:?}", page.holds);
                self.broken.get_or_insert((Rule::Committed, why));
            }
        }
        let times = self.decode.attached.entry((self.sender_epoch, seq)).or_default();
        *times += 1;
        if *times > 1 {
            self.breaks(Rule::Committed, format!("sequence {seq} was committed twice"));
        }
        // It runs to its end at once.
        self.free(&keys);
    }

    fn release(&mut self, transfer: TransferId) {
        if self.decode.imports.iter().any(|import| import.0 == transfer) {
            self.breaks(Rule::ReleasedTooSoon, format!("transfer {transfer} was released while a page of it is being imported"));
        }
        self.decode.wishes.remove(&transfer);
        if let Some((_, keys)) = self.decode.reserved.remove(&transfer) {
            self.free(&keys);
        }
    }

    /// Frees pages, and checks that nobody else's were touched: a stolen page holds what its new owner put there.
    fn free(&mut self, keys: &[PageKey]) {
        for key in keys {
            let page = &mut self.decode.pages[key.page as usize];
            if page.tag != key.tag && page.holds != Some(200) {
                self.broken.get_or_insert((Rule::TagMovedOn, format!("{key:?} was written after its tag had moved on")));
            }
            self.decode.tags += 1;
            *page = Page { tag: self.decode.tags, ..Page::default() };
        }
    }

    /// Sequences that the sender knows to have ended so.
    pub(crate) fn known_ends(&self, so: impl Fn(&Outcome) -> bool) -> usize {
        self.sequences.iter().filter(|sequence| matches!(&sequence.stage, Stage::Over(how) if so(how))).count()
    }

    /// Whether a sequence that was on its way to one life of the receiver is offered to another.
    pub(crate) fn moved_on(&self) -> bool {
        let offered = |sequence: &Sequence| matches!(sequence.stage, Stage::Offered(transfer) if transfer.0 > 1);
        self.receiver_epoch > 2 && self.sequences.iter().any(offered)
    }

    // --- how it must end --------------------------------------------------------------------------------------------

    /// From here on the network is fair and nothing fails: every transfer must end and every page be free.
    pub(crate) fn must_quiesce(&self) -> Result<(), String> {
        let mut world = self.clone();
        world.disconnect();
        for _ in 0..200 {
            if world.can_connect() {
                world.to_decode.clear();
                world.to_prefill.clear();
                world.connect();
            }
            (0..world.sequences.len()).filter(|&seq| world.can_offer(seq)).collect::<Vec<_>>().into_iter().for_each(|seq| {
                if world.can_offer(seq) {
                    world.offer(seq);
                }
            });
            world.fetches().into_iter().for_each(|(transfer, index)| world.fetch(transfer, index));
            world.imports().into_iter().for_each(|import| world.import(import));
            world.wishes().into_iter().for_each(|transfer| world.reserve(transfer));
            std::mem::take(&mut world.to_decode).iter().for_each(|message| world.deliver_to_decode(message));
            std::mem::take(&mut world.to_prefill).iter().for_each(|message| world.deliver_to_prefill(message));
            let over = |sequence: &Sequence| {
                matches!(sequence.stage, Stage::Over(_)) || sequence.cancelled && sequence.stage == Stage::Waiting
            };
            if world.sequences.iter().all(over) && world.sender.open() == 0 && world.receiver.open() == 0 {
                let free = world.decode.pages.iter().all(|page| page.owner.is_none());
                let idle = free && world.decode.wishes.is_empty() && world.decode.reserved.is_empty();
                return match world.broken {
                    None if idle => Ok(()),
                    None => Err(format!("pages are left: {:?}", world.decode)),
                    Some((rule, why)) => Err(format!("{rule:?}: {why}")),
                };
            }
        }
        Err(format!("transfers do not end: {:?}\n{:?}\n{:?}", world.sequences, world.sender, world.receiver))
    }
}
