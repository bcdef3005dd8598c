//! One transfer on the decode side: which of its pages are where. Knows no messages.

use super::ring::Ring;
use crate::{CHUNK_BYTES, End, OutOfOrder, PageKey, TransferId, chunks_of};

/// Where a page of a transfer is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    /// With the sender.
    There,
    /// In a slot, as far as its parts have come.
    Filling {
        slot: u32,
        parts: Vec<bool>,
    },
    Importing {
        slot: u32,
    },
    Landed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Incoming {
    pages: u32,
    /// One for each page, once reserved.
    targets: Vec<PageKey>,
    places: Vec<Place>,
    commit: bool,
    closing: Option<End>,
}

/// A part of a page, as it came.
pub(super) struct Part {
    pub(super) index: u32,
    pub(super) page: PageKey,
    pub(super) chunk: u32,
    pub(super) bytes: Vec<u8>,
}

/// What came of a part.
pub(super) enum Put {
    /// Not for a page of this transfer, or of one that is ending.
    Stale,
    /// It was here already.
    Known,
    /// Its page has landed already.
    Landed,
    /// It goes into a slot. `whole`: that was the last part of the page.
    Staged { slot: u32, bytes: Vec<u8>, whole: Option<PageKey> },
}

impl Incoming {
    pub(super) fn new(pages: u32) -> Self {
        Self { pages, targets: Vec::new(), places: vec![Place::There; pages as usize], commit: false, closing: None }
    }

    pub(super) fn is_reserved(&self) -> bool {
        !self.targets.is_empty()
    }

    pub(super) fn targets(&self) -> &[PageKey] {
        &self.targets
    }

    pub(super) fn landed_pages(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.places).filter(|(_, place)| **place == Place::Landed).map(|(index, _)| index)
    }

    /// False where it is not wanted.
    pub(super) fn reserve(&mut self, pages: Vec<PageKey>) -> bool {
        let wanted = self.closing.is_none() && self.targets.is_empty() && pages.len() == self.pages as usize;
        if wanted {
            self.targets = pages;
        }
        wanted
    }

    pub(super) fn put(&mut self, transfer: TransferId, part: Part, page_bytes: u32, ring: &mut Ring) -> Result<Put, OutOfOrder> {
        let Part { index, page, chunk, bytes } = part;
        if self.closing.is_some() || self.targets.get(index as usize) != Some(&page) {
            return Ok(Put::Stale);
        }
        let chunks = chunks_of(page_bytes);
        let expected = (page_bytes as usize).saturating_sub(chunk as usize * CHUNK_BYTES).min(CHUNK_BYTES);
        if chunk >= chunks || bytes.len() != expected {
            return Err(OutOfOrder::Chunk { transfer, index, chunk, bytes: bytes.len() });
        }
        let Some(place) = self.places.get_mut(index as usize) else { return Ok(Put::Stale) };
        if *place == Place::There {
            let slot = ring.take().ok_or(OutOfOrder::NoSlot { transfer, index, slots: ring.slots() })?;
            *place = Place::Filling { slot, parts: vec![false; chunks as usize] };
        }
        let Place::Filling { slot, parts } = place else {
            return Ok(if *place == Place::Landed { Put::Landed } else { Put::Known });
        };
        let slot = *slot;
        match parts.get_mut(chunk as usize) {
            Some(part) if !*part => *part = true,
            _ => return Ok(Put::Known),
        }
        let whole = parts.iter().all(|part| *part);
        if whole {
            *place = Place::Importing { slot };
        }
        Ok(Put::Staged { slot, bytes, whole: whole.then_some(page) })
    }

    /// Parts of pages that are not whole are given up.
    pub(super) fn drop_parts(&mut self, ring: &mut Ring) {
        for place in &mut self.places {
            if let Place::Filling { slot, .. } = place {
                ring.put_back(*slot);
                *place = Place::There;
            }
        }
    }

    /// A page was imported; false where none was being.
    pub(super) fn landed(&mut self, index: u32, ring: &mut Ring) -> bool {
        self.leave_slot(index, Place::Landed, ring)
    }

    /// A page could not be imported.
    pub(super) fn refused(&mut self, index: u32, ring: &mut Ring) {
        self.leave_slot(index, Place::There, ring);
    }

    fn leave_slot(&mut self, index: u32, to: Place, ring: &mut Ring) -> bool {
        let Some(place) = self.places.get_mut(index as usize) else { return false };
        let Place::Importing { slot } = *place else { return false };
        ring.put_back(slot);
        *place = to;
        true
    }

    pub(super) fn commit(&mut self) {
        self.commit = true;
    }

    /// It will not be committed. The first reason is kept.
    pub(super) fn close(&mut self, end: End) {
        self.closing.get_or_insert(end);
    }

    /// How it ends, if it can end now: nothing of it is being imported.
    pub(super) fn end(&mut self, ring: &mut Ring) -> Option<End> {
        if self.places.iter().any(|place| matches!(place, Place::Importing { .. })) {
            return None;
        }
        if let Some(end) = &self.closing {
            let end = end.clone();
            self.drop_parts(ring);
            return Some(end);
        }
        let all = self.is_reserved() && self.places.iter().all(|place| *place == Place::Landed);
        (self.commit && all).then_some(End::Committed)
    }
}
