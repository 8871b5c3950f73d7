//! Simulated regions: memory that compute servers expose, as one more memory server for each life (F11).
//!
//! - **REGION-1** The place of a life's region is settled at each post. An operation goes there or nowhere
//!   (F11.5).
//! - **REGION-2** When a life is killed, its region vanishes with all that is on its way to it: requests that
//!   have not taken effect never do, and their posters get `Timeout`, or `Gone` once they have been told.
//! - **REGION-3** Runs without regions keep their traces: nothing is drawn from a generator for a region.

use std::sync::Arc;

use super::calendar::{Kind, LATER_INSTANTS};
use super::machine::Machine;
use super::nic::CardUse;
use super::slots::{GivenUp, NOWHERE, SimPayload, SlotState};
use super::{Sim, SimFabric};
use crate::calls::{check_exposed, region_words};
use crate::{
    CallError, FabricError, Incarnation, OpError, OpErrorKind, OwnRegion, ServerId, Words, canary,
};

impl Machine {
    /// The place of the region of a life.
    pub(super) fn place_of_life(&self, life: u32) -> usize {
        self.memory_servers + life as usize
    }

    /// The life that a number stands for at the life `me`.
    pub(super) fn life_at(&self, me: u32, server: ServerId) -> Option<u32> {
        let own = self.lives[me as usize].own.get().is_some_and(|own| own.number == server);
        match self.calls.peer(me, server) {
            Some(peer) if peer.life == me => own.then_some(me),
            Some(peer) => (peer.region_bytes > 0).then_some(peer.life),
            None => own.then_some(me),
        }
    }

    /// Settles where the parts of a post go (REGION-1).
    #[cold]
    pub(super) fn find_places(&mut self, index: u32) {
        let slot = &self.slots[index];
        let me = slot.poster.life;
        let parts = match &slot.payload {
            SimPayload::Batch(ops) => ops.len() as u16,
            _ => 1,
        };
        let (mut places, mut failure) = (Vec::with_capacity(parts.into()), None);
        let mut last_region = None;
        for part in 0..parts {
            let Some(server) = slot.server(part) else { continue };
            if server.index() < self.memory_servers {
                places.push(u32::from(server.0));
                continue;
            }
            let kind = match &slot.payload {
                SimPayload::Rpc { service, .. } if server.is_compute() => {
                    Some(OpErrorKind::NoService { service: service.0 })
                }
                _ => None,
            };
            let life = self.life_at(me, server);
            let is_gone = life.is_some_and(|life| self.calls.was_told_dead(me, life));
            let gone = life.filter(|_| is_gone).map(gone);
            if let Some(kind) = kind.or(gone) {
                failure.get_or_insert(OpError { server, kind });
            }
            last_region = life.or(last_region);
            places.push(life.map_or(NOWHERE, |life| self.place_of_life(life) as u32));
        }
        if let Some(region) = last_region {
            self.lives[me as usize].last_region = Some(region);
        }
        let is_message = matches!(slot.payload, SimPayload::Reconnect { .. });
        let slot = &mut self.slots[index];
        slot.places = places;
        // A message finds out for itself.
        if let Some(failure) = failure.filter(|_| !is_message) {
            slot.fail(failure);
        }
    }

    /// Returns whether a message is a reconnect to a region, which holds later operations back.
    pub(super) fn settles_region(&self, index: u32) -> bool {
        let slot = &self.slots[index];
        let place = slot.place(0).and_then(|place| self.servers.get(place));
        matches!(slot.payload, SimPayload::Reconnect { .. })
            && place.is_some_and(|place| place.gone || place.words.bytes() > 0)
    }

    /// Returns whether the destination of a part has vanished.
    pub(super) fn is_gone(&self, index: u32, part: u16) -> bool {
        let place = self.slots[index].place(part).and_then(|place| self.servers.get(place));
        place.is_some_and(|place| place.gone)
    }

    /// Handles an event of an operation whose region has vanished (REGION-2); false if it goes on.
    #[cold]
    pub(super) fn goes_nowhere(&mut self, kind: Kind, index: u32, part: u16) -> bool {
        let is_instant = LATER_INSTANTS.contains(&kind);
        let ends = match kind {
            Kind::Execute | Kind::Atomic => true,
            // Its later instants never came.
            Kind::Complete => self.slots[index].half,
            _ => false,
        };
        if ends {
            self.strike_message(index, part, "owner dead");
            self.wind_up_from_post(index);
            self.vanish(index);
        }
        ends || is_instant
    }

    /// A life has ended, and its region with it.
    pub(super) fn end_region(&mut self, life: u32) {
        let at = self.place_of_life(life);
        if self.servers[at].words.bytes() == 0 {
            return;
        }
        let no_words = self.no_words();
        let place = &mut self.servers[at];
        place.gone = true;
        if !canary::REGION_OUTLIVES_LIFE.is_armed() {
            place.words = no_words;
        }
        // Requests that wait there while it is stopped end as well.
        self.resume_place(at);
    }

    /// Posts of the life `me` to the region of `who` fail: that life has ended for it, or is detached.
    pub(super) fn end_region_posts(&mut self, me: u32, who: u32) {
        let place = self.place_of_life(who);
        if self.servers[place].words.bytes() == 0 && !self.servers[place].gone {
            return;
        }
        for index in self.take_waiting(me, place) {
            match self.slots[index].payload {
                SimPayload::Reconnect { .. } => {
                    self.give_outcome(index, Err(CallError::Unknown(gone(who))));
                }
                _ => self.vanish(index),
            }
        }
        for index in 0..self.slots.end() {
            let slot = &self.slots[index];
            let is_message = matches!(slot.payload, SimPayload::Reconnect { .. });
            if slot.state == SlotState::Free || slot.poster.life != me || is_message {
                continue;
            }
            let at = (0..slot.parts).find(|part| slot.place(*part) == Some(place));
            if let Some(server) = at.and_then(|part| slot.server(part)) {
                self.time_out(index, GivenUp { server, gone: Some(who) });
            }
        }
    }

    /// The seeded bug [`canary::NUMBER_FOLLOWS_SLOT`]: an operation on the region of a life goes to that of the
    /// machine's present one.
    #[cold]
    pub(super) fn follow_slot(&mut self, index: u32, part: u16) {
        let Some(owner) = self.slots[index].place(part).and_then(|at| self.servers[at].owner)
        else {
            return;
        };
        let compute = self.lives[owner as usize].compute;
        let last = self.lives.iter().rposition(|life| life.compute == compute);
        let last = last.map_or(owner, |life| life as u32);
        let place = self.place_of_life(last) as u32;
        let slot = &mut self.slots[index];
        let part = if slot.places.len() == 1 { 0 } else { usize::from(part) };
        slot.places[part] = place;
    }

    /// The words with which a region begins.
    fn new_words(
        &self,
        life: u32,
        number: ServerId,
        bytes: u64,
    ) -> Result<Option<Arc<Words>>, FabricError> {
        if canary::REGION_OUTLIVES_LIFE.is_armed() {
            let compute = self.lives[life as usize].compute;
            let old = (0..life).rev().find(|old| self.lives[*old as usize].compute == compute);
            let old = old.map(|old| &self.servers[self.place_of_life(old)].words);
            if let Some(old) = old.filter(|old| old.bytes() == bytes && bytes > 0) {
                return Ok(Some(Arc::clone(old)));
            }
        }
        region_words(number, bytes)
    }
}

fn gone(life: u32) -> OpErrorKind {
    OpErrorKind::Gone { who: Incarnation(u64::from(life) + 1) }
}

impl SimFabric {
    pub(super) fn expose_region(&self, number: ServerId, bytes: u64) -> Result<(), FabricError> {
        check_exposed(number, bytes)?;
        let mut machine = self.inner().machine.borrow_mut();
        let life = self.life();
        let words = machine.new_words(life, number, bytes)?;
        machine.open_receiver(life)?;
        if let Some(words) = words {
            let place = machine.place_of_life(life);
            machine.servers[place].words = Arc::clone(&words);
            machine.has_regions = true;
            let _ = machine.lives[life as usize].own.set(OwnRegion { number, words });
        }
        Ok(())
    }

    /// As [`SimFabric::stop`], and its region stops too, as where a process serves it
    /// ([`crate::Capabilities::needs_target_progress`]): operations on it wait until [`SimFabric::resume`],
    /// and their clients get `Timeout`. [`SimFabric::stop`] alone leaves the region at work, as where a card
    /// serves it.
    pub fn stop_with_region(&self) {
        self.stop();
        let mut machine = self.inner().machine.borrow_mut();
        let place = machine.place_of_life(self.life());
        machine.stop_place(place);
    }

    /// The memory that this life exposes, to read or fill without virtual time; `None` if there is none.
    pub fn region(&self) -> Option<Arc<Words>> {
        let machine = self.inner().machine.borrow();
        let words = &machine.servers[machine.place_of_life(self.life())].words;
        (words.bytes() > 0).then(|| Arc::clone(words))
    }
}

impl Sim {
    /// Work so far of each memory server's card, and behind those of each compute server's. For work since a
    /// mark, subtract what this returned then ([`CardUse::since`]).
    pub fn card_use(&self) -> Vec<CardUse> {
        self.inner.machine.borrow().nics.iter().map(|nic| nic.used()).collect()
    }
}
