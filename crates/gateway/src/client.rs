//! Client: what a connection has chosen.

use std::time::Instant;

use crate::resp::replies::Protocol;

/// The state of a connection.
#[derive(Debug)]
pub(crate) struct Client {
    /// Number of the connection, never given twice.
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) name: Vec<u8>,
    /// Library and its version, as the client told.
    pub(crate) library: [Vec<u8>; 2],
    pub(crate) database: usize,
    pub(crate) protocol: Protocol,
    pub(crate) since: Instant,
    /// The connection ends once its replies are sent.
    pub(crate) ends: bool,
}

impl Client {
    pub(crate) fn new(id: u64, address: String) -> Self {
        Client {
            id,
            address,
            name: Vec::new(),
            library: Default::default(),
            database: 0,
            protocol: Protocol::default(),
            since: Instant::now(),
            ends: false,
        }
    }

    /// Forgets what the client has chosen.
    pub(crate) fn reset(&mut self) {
        self.name.clear();
        self.database = 0;
        self.protocol = Protocol::default();
    }

    /// The client as a line of `CLIENT LIST`.
    pub(crate) fn line(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!(
            "id={} addr={} name={} age={} db={} resp={} lib-name={} lib-ver={}",
            self.id,
            self.address,
            text(&self.name),
            self.since.elapsed().as_secs(),
            self.database,
            if self.protocol == Protocol::Resp3 { 3 } else { 2 },
            text(&self.library[0]),
            text(&self.library[1]),
        )
    }
}
