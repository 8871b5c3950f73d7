//! Simulated connections: one thread's send queue to one memory server or region, and its reconnects.
//!
//! - **CONN-1** With a limit, a connection has in flight at most [`super::SimConfig::queue_depth`]
//!   operations, or one longer chain; the rest waits in posted order.
//! - **CONN-2** While a reconnect is under way nothing else leaves. An operation that was posted before
//!   it and has not left never does.
//! - **CONN-3** After a reconnect has reached a server, no earlier post of that thread and life takes
//!   effect there (F10).
//! - **CONN-4** The end of a thread's connection by another thread acts as that thread's reconnect would (F13), on all
//!   that it has posted until then. Posts behind a reconnect of its own, newer than the mark, are not touched.

use std::collections::{BTreeMap, VecDeque};

use super::machine::Machine;
use super::slots::{GivenUp, Poster, SimPayload, SlotState};
use crate::{ConnectionMark, Incarnation, ServerId, canary};

/// Life, thread and place of the destination of a connection.
pub(super) type Key = (u32, u32, usize);

#[derive(Debug)]
pub(super) struct Connections {
    depth: usize,
    /// Only connections with operations in flight or waiting, and only while that matters.
    list: BTreeMap<Key, SimConnection>,
    /// Reconnects under way.
    reconnects: usize,
}

#[derive(Debug, Default)]
struct SimConnection {
    /// Post, part and operations of messages in flight.
    flying: Vec<(u64, u16, usize)>,
    /// Slot and part of waiting messages.
    waiting: VecDeque<(u32, u16)>,
    /// The post that reconnects.
    reconnecting: Option<u64>,
}

impl Connections {
    pub(super) fn new(depth: usize) -> Self {
        Connections { depth, list: BTreeMap::new(), reconnects: 0 }
    }

    /// Returns whether a message may have to wait before it leaves.
    #[inline]
    pub(super) fn may_hold(&self) -> bool {
        self.depth != usize::MAX || self.reconnects > 0
    }
}

impl SimConnection {
    fn has_room(&self, depth: usize, ops: usize) -> bool {
        let flying: usize = self.flying.iter().map(|(.., ops)| ops).sum();
        self.flying.is_empty() || flying.saturating_add(ops) <= depth
    }
}

impl Machine {
    fn key(&self, index: u32, part: u16) -> Option<Key> {
        let slot = &self.slots[index];
        let place = slot.place(part)?;
        (place < self.servers.len()).then_some((slot.poster.life, slot.poster.thread, place))
    }

    /// Returns whether a message has to wait before it leaves (CONN-1, CONN-2); it leaves later.
    #[cold]
    pub(super) fn hold(&mut self, index: u32, part: u16) -> bool {
        let Some(key) = self.key(index, part) else { return false };
        let (serial, ops) = (self.slots[index].serial, self.slots[index].payload.message_ops());
        let depth = self.connections.depth;
        if depth == usize::MAX && !self.connections.list.contains_key(&key) {
            return false;
        }
        let connection = self.connections.list.entry(key).or_default();
        let is_held = connection.reconnecting.is_some()
            || !connection.waiting.is_empty()
            || !connection.has_room(depth, ops);
        if is_held {
            connection.waiting.push_back((index, part));
            self.slots[index].held += 1;
            self.strike_message(index, part, "held");
        } else if depth != usize::MAX {
            connection.flying.push((serial, part, ops));
        }
        is_held
    }

    /// A post's messages never leave if they wait to.
    pub(super) fn forget_waiting(&mut self, index: u32) {
        if self.slots[index].held > 0
            && let Some(key) = self.key(index, 0)
            && let Some(connection) = self.connections.list.get_mut(&key)
        {
            connection.waiting.retain(|(waiting, _)| *waiting != index);
            self.slots[index].held = 0;
        }
    }

    /// Takes away what waits on connections of the life `me` to `place`; returns the posts.
    pub(super) fn take_waiting(&mut self, me: u32, place: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        for ((life, _, at), connection) in &mut self.connections.list {
            if (*life, *at) == (me, place) {
                taken.extend(connection.waiting.drain(..).map(|(index, _)| index));
            }
        }
        taken.iter().for_each(|index| self.slots[*index].held -= 1);
        taken
    }

    /// Begins a posted reconnect; false if it has to wait for another one to end.
    pub(super) fn begin_reconnect(&mut self, index: u32) -> bool {
        let Some(key) = self.key(index, 0) else { return true };
        let serial = self.slots[index].serial;
        let connection = self.connections.list.entry(key).or_default();
        if connection.reconnecting.is_some() {
            connection.waiting.push_back((index, 0));
            self.slots[index].held += 1;
            return false;
        }
        connection.reconnecting = Some(serial);
        self.connections.reconnects += 1;
        true
    }

    /// A message has been answered, or its client waits no more.
    #[inline]
    pub(super) fn release(&mut self, index: u32, part: u16) {
        if self.connections.may_hold() {
            self.make_room(index, part);
        }
    }

    #[cold]
    fn make_room(&mut self, index: u32, part: u16) {
        let Some(key) = self.key(index, part) else { return };
        let serial = self.slots[index].serial;
        // A chain is one message: its answer comes from its last operation.
        let part = if matches!(self.slots[index].payload, SimPayload::Chain(_)) { 0 } else { part };
        if let Some(connection) = self.connections.list.get_mut(&key) {
            connection.flying.retain(|(post, number, _)| (*post, *number) != (serial, part));
            self.send_waiting(key);
        }
    }

    /// As [`Machine::release`] for all messages of a post.
    pub(super) fn release_all(&mut self, index: u32) {
        if self.connections.may_hold() {
            for part in 0..self.slots[index].parts {
                self.make_room(index, part);
            }
        }
    }

    /// Sends the messages that have room now.
    fn send_waiting(&mut self, key: Key) {
        let depth = self.connections.depth;
        loop {
            let Some(connection) = self.connections.list.get_mut(&key) else { return };
            let Some((index, part)) = connection.waiting.front().copied() else {
                if connection.flying.is_empty() && connection.reconnecting.is_none() {
                    self.connections.list.remove(&key);
                }
                return;
            };
            let is_reconnect = matches!(self.slots[index].payload, SimPayload::Reconnect { .. });
            let ops = self.slots[index].payload.message_ops();
            if connection.reconnecting.is_some()
                || !is_reconnect && !connection.has_room(depth, ops)
            {
                return;
            }
            connection.waiting.pop_front();
            let slot = &mut self.slots[index];
            slot.held -= 1;
            if is_reconnect {
                connection.reconnecting = Some(slot.serial);
                self.connections.reconnects += 1;
            } else if depth != usize::MAX {
                connection.flying.push((slot.serial, part, ops));
            }
            self.depart_now(index, part, self.now);
        }
    }

    /// If the slot holds a reconnect, it has ended for its client: the messages held back for it leave. If it
    /// succeeded, operations that were in flight before it fail.
    #[inline]
    pub(super) fn after_reconnect(&mut self, index: u32, went_well: bool) {
        if let SimPayload::Reconnect { server } = self.slots[index].payload {
            self.end_reconnect(index, server, went_well);
        }
    }

    #[cold]
    fn end_reconnect(&mut self, index: u32, server: ServerId, went_well: bool) {
        let Some(key) = self.key(index, 0) else { return };
        let slot = &self.slots[index];
        let (serial, poster) = (slot.serial, slot.poster);
        let went_well = went_well && slot.error.is_none();
        let reconnecting = self.connections.list.get(&key).and_then(|list| list.reconnecting);
        if reconnecting != Some(serial) {
            // Its client has given up on it before.
            return;
        }
        if went_well {
            self.fail_older(key, serial, poster, server);
        }
        if let Some(connection) = self.connections.list.get_mut(&key) {
            connection.reconnecting = None;
            self.connections.reconnects -= 1;
        }
        self.send_waiting(key);
    }

    /// Fails posts from before post `serial` that are not back; their unsent messages never leave. A batch
    /// fails with any part of it.
    fn fail_older(&mut self, key: Key, serial: u64, poster: Poster, server: ServerId) {
        let mut dead = Vec::new();
        if let Some(connection) = self.connections.list.get_mut(&key) {
            let slots = &mut self.slots;
            connection.waiting.retain(|(index, _)| {
                let slot = &mut slots[*index];
                let is_older = slot.serial < serial;
                if is_older {
                    slot.held -= 1;
                    dead.push(*index);
                }
                !is_older
            });
        }
        dead.into_iter().for_each(|index| self.vanish(index));
        for index in 0..self.slots.end() {
            let slot = &self.slots[index];
            if slot.state != SlotState::Free
                && slot.is_by(poster)
                && slot.serial < serial
                && (0..slot.parts).any(|part| slot.place(part) == Some(key.2))
            {
                self.time_out(index, GivenUp { server, gone: None });
            }
        }
    }

    /// Nothing that `poster`'s thread posted before `serial` takes effect at `place` any more.
    pub(super) fn settle_at(&mut self, place: usize, poster: Poster, serial: u64) {
        self.cut(place, |slot| slot.is_by(poster) && slot.serial < serial);
        let key = (poster.life, poster.thread);
        let last = self.servers[place].reconnected.entry(key).or_default();
        *last = (*last).max(serial);
    }

    /// The reconnect in slot `index` has come to its server (CONN-3).
    pub(super) fn reconnect(&mut self, index: u32, server: ServerId) {
        self.ops += 1;
        if !self.refused(index, 0) {
            let (poster, serial) = (self.slots[index].poster, self.slots[index].serial);
            self.settle_at(server.index(), poster, serial);
            self.record_effect(index, 0);
        }
        self.trace.add(u64::from(server.0));
        self.respond(index, 0);
    }

    /// See [`crate::Endpoint::connection`].
    pub(super) fn mark(&self, poster: Poster, server: ServerId) -> Option<ConnectionMark> {
        let life = match server.index() < self.memory_servers {
            true => ConnectionMark::MEMORY,
            false => {
                let life = self.life_at(poster.life, server)?;
                if self.calls.was_told_dead(poster.life, life) {
                    return None;
                }
                Incarnation(u64::from(life) + 1)
            }
        };
        let line = poster.thread.into();
        Some(ConnectionMark { server, life, line, number: 0, posts: self.posts })
    }

    /// The end of a connection to a memory server, in slot `index`, has come there.
    pub(super) fn end_connection(&mut self, index: u32, thread: u32, posts: u64) {
        self.ops += 1;
        if !self.refused(index, 0)
            && let Some(place) = self.slots[index].place(0)
        {
            self.end_at(place, (self.slots[index].poster.life, thread), posts);
            self.record_effect(index, 0);
        }
        self.trace.add(posts);
        self.respond(index, 0);
    }

    /// Ends the connection of a life's thread to `place`, unless the thread has another one since its post `posts`
    /// (CONN-4).
    pub(super) fn end_at(&mut self, place: usize, (life, thread): (u32, u32), posts: u64) {
        if canary::END_SPARES_POSTED.is_armed() {
            return;
        }
        if self.servers[place].reconnected.get(&(life, thread)).is_some_and(|last| *last > posts) {
            return;
        }
        let connection = self.connections.list.get(&(life, thread, place));
        let next = connection.and_then(|connection| connection.reconnecting);
        let until = next.filter(|next| *next > posts).unwrap_or(self.posts + 1);
        self.settle_at(place, Poster { thread, life, endpoint: 0 }, until);
    }
}
