//! Client: the choices of a connection, and the list of all clients.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::shared::lock;
use crate::users::User;
use farleaf_resp::replies::Protocol;

/// The state of a connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) card: Arc<ClientCard>,
    /// The place of the selected table among those of the gateway.
    pub(crate) table: usize,
    pub(crate) protocol: Protocol,
    /// The user that it has proved to be; `None` without users, and before `AUTH`.
    pub(crate) user: Option<Arc<User>>,
    /// The connection ends once its replies are sent.
    pub(crate) ends: bool,
}

/// The part of a client that `CLIENT LIST` shows to others.
#[derive(Debug)]
pub(crate) struct ClientCard {
    /// Number of the connection, never given twice.
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) since: Instant,
    /// The connection is to end: `CLIENT KILL`.
    pub(crate) is_killed: AtomicBool,
    pub(crate) told: Mutex<Told>,
}

/// The choices that a client has told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) name: Vec<u8>,
    /// Library and its version.
    pub(crate) library: [Vec<u8>; 2],
    pub(crate) database: usize,
    pub(crate) is_resp3: bool,
    pub(crate) user: Option<String>,
}

impl Client {
    pub(crate) fn new(id: u64, address: String) -> Self {
        let card = ClientCard {
            id,
            address,
            since: Instant::now(),
            is_killed: AtomicBool::new(false),
            told: Mutex::default(),
        };
        Client {
            card: Arc::new(card),
            table: 0,
            protocol: Protocol::default(),
            user: None,
            ends: false,
        }
    }

    /// Changes what others are told.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut lock(&self.card.told));
    }

    pub(crate) fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        self.tell(|told| told.is_resp3 = protocol == Protocol::Resp3);
    }

    /// The client is that user from now on, and has selected its first table.
    pub(crate) fn set_user(&mut self, user: Arc<User>, table: usize) {
        self.table = table;
        self.tell(|told| (told.user, told.database) = (Some(user.name.clone()), 0));
        self.user = Some(user);
    }

    /// Forgets the choices of the client.
    pub(crate) fn reset(&mut self) {
        self.table = 0;
        self.user = None;
        self.protocol = Protocol::default();
        self.tell(|told| *told = Told::default());
    }
}

impl ClientCard {
    /// The client as a line of `CLIENT LIST`.
    pub(crate) fn line(&self) -> String {
        let told = lock(&self.told);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!(
            "id={} addr={} name={} age={} db={} resp={} user={} lib-name={} lib-ver={}",
            self.id,
            self.address,
            text(&told.name),
            self.since.elapsed().as_secs(),
            told.database,
            if told.is_resp3 { 3 } else { 2 },
            told.user.as_deref().unwrap_or("default"),
            text(&told.library[0]),
            text(&told.library[1]),
        )
    }

    /// The name for the log.
    pub(crate) fn name(&self) -> String {
        lock(&self.told).name.escape_ascii().to_string()
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Relaxed)
    }
}

/// All clients by their numbers.
pub(crate) type Clients = BTreeMap<u64, Arc<ClientCard>>;
