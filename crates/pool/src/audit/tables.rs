//! Table audit: checks the entries of members, clients and roots, and the epoch.
//!
//! The words of a READ may be of different moments, and other members may be at work. So the audit
//! reads a suspect word again, and reports it only if it is unchanged.

use std::collections::BTreeMap;

use crate::geometry::RETIRE_BYTES;
use crate::member::{self, MemberEntry};
use crate::words::{EPOCH_MAX, MemberState};
use crate::{LockToken, PoolError, Session};

/// READs of retire pages with one doorbell.
const PAGES: usize = 16;

/// Adds what is wrong.
pub(super) async fn check(session: &Session, problems: &mut Vec<String>) -> Result<(), PoolError> {
    check_members(session, problems).await?;
    check_clients(session, problems).await?;
    check_roots(session, problems).await
}

async fn check_members(session: &Session, problems: &mut Vec<String>) -> Result<(), PoolError> {
    let geometry = session.pool().geometry();
    // The members first: no announcement is above the epoch of any later moment.
    let mut faults = member_faults(&member::read_table(session.reliable(), geometry).await?);
    if !faults.is_empty() {
        let again = member_faults(&member::read_table(session.reliable(), geometry).await?);
        faults.retain(|slot, fault| again.get(slot) == Some(fault));
        problems.extend(faults.into_values().map(|(_, fault)| fault));
    }
    let members = member::read_table(session.reliable(), geometry).await?;
    let epoch = session.reliable().word(geometry.epoch_addr()).await?;
    if epoch == 0 || epoch >= EPOCH_MAX {
        problems.push(format!("INV-EPOCH-2: the global epoch is {epoch}, which it never becomes"));
    }
    for (slot, entry) in members.iter().enumerate() {
        let is_live = matches!(entry.word.state(), Ok(MemberState::Live));
        if let Some(announced) = entry.announced.epoch().filter(|_| is_live)
            && announced > epoch
        {
            problems.push(format!(
                "INV-EPOCH-3: member {slot} announces epoch {announced}, and the global one is {epoch}"
            ));
        }
    }
    Ok(())
}

/// By slot: the state word, and what is wrong.
fn member_faults(members: &[MemberEntry]) -> BTreeMap<usize, (u64, String)> {
    let mut faults = BTreeMap::new();
    for (slot, entry) in members.iter().enumerate() {
        let fault = match entry.word.state() {
            Err(error) => format!("member {slot}: {error}"),
            Ok(MemberState::Free) => continue,
            Ok(_) if entry.incarnation.0 != 0 => continue,
            Ok(state) => format!("INV-MEM-1: member {slot} is {state:?} without an incarnation"),
        };
        faults.insert(slot, (entry.word.0, fault));
    }
    faults
}

async fn check_clients(session: &Session, problems: &mut Vec<String>) -> Result<(), PoolError> {
    let (geometry, client) = (session.pool().geometry(), session.reliable());
    let count = geometry.options().clients_max;
    let entries = session.pool().read_entries(client, 0..count).await?;
    for (id, entry) in (0..count).zip(&entries) {
        let [_, given, first, _] = *entry;
        if first > given {
            let again = client.read(geometry.client_addr(id), client.buf(24)).await?;
            if again.words()[2] == first && again.words()[1] == given {
                problems.push(format!(
                    "INV-CLIENT-2: client {id} has given out {given} tokens, and {first} before"
                ));
            }
        }
    }
    let free: Vec<u32> = (0..count).filter(|id| entries[*id as usize][0] == 0).collect();
    for server in geometry.server_ids() {
        for ids in free.chunks(PAGES) {
            let mut ops = session.client().ops();
            for id in ids {
                let at = geometry.retire_addr(server, *id, 0);
                ops.read(at, client.buf(RETIRE_BYTES as usize));
            }
            let ops = client.post_many(ops).await?;
            for (at, id) in ids.iter().enumerate() {
                if ops.buf(at).words().iter().all(|word| *word == 0) {
                    continue;
                }
                // Free before and after: free meanwhile, unless a session came and went.
                let owner = client.word(geometry.client_addr(*id)).await?;
                let page = client.buf(RETIRE_BYTES as usize);
                let page = client.read(geometry.retire_addr(server, *id, 0), page).await?;
                if owner == 0 && page.words() == ops.buf(at).words() {
                    problems.push(format!(
                        "INV-CLIENT-1: client {id} is free, and its retire page on server {server} \
                         is not empty"
                    ));
                }
            }
        }
    }
    Ok(())
}

async fn check_roots(session: &Session, problems: &mut Vec<String>) -> Result<(), PoolError> {
    let lock = session.reliable().word(session.pool().geometry().root_lock_addr()).await?;
    if lock != 0 && LockToken::from_word(lock).is_none() {
        problems.push(format!("INV-ROOT-1: the root lock is {lock:#018x}, which names no holder"));
    }
    let mut twice = None;
    for _ in 0..2 {
        let roots = match session.list_roots().await {
            Ok(roots) => roots,
            Err(PoolError::Corrupt(why)) => {
                problems.push(why);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut slots = BTreeMap::new();
        twice = roots.iter().find_map(|root| {
            let before = slots.insert(&root.name, root.slot)?;
            Some((root.name.clone(), before, root.slot))
        });
        if twice.is_none() {
            break;
        }
    }
    if let Some((name, one, other)) = twice {
        problems.push(format!(
            "INV-ROOT-2: entries {one} and {other} of the root table are both named {name:?}"
        ));
    }
    Ok(())
}
