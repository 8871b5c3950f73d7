//! Subset: the operations of a run that shrinking leaves.

use std::fmt;
use std::str::FromStr;

use super::ScenarioError;

/// Some operations of some clients; written `0:0-5,9/2:3`, or `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subset(
    /// For each client its operations in ascending order; `None` for all of every client's.
    pub Option<Vec<Vec<u32>>>,
);

impl Subset {
    /// The operations of `client`, of which there are `ops`.
    pub fn of(&self, client: usize, ops: usize) -> Vec<u32> {
        match &self.0 {
            None => (0..ops as u32).collect(),
            Some(clients) => {
                let own = clients.get(client).map_or(&[][..], Vec::as_slice);
                own.iter().copied().filter(|op| (*op as usize) < ops).collect()
            }
        }
    }
}

impl fmt::Display for Subset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(clients) = &self.0 else { return f.write_str("all") };
        let mut is_first = true;
        for (client, ops) in clients.iter().enumerate().filter(|(_, ops)| !ops.is_empty()) {
            write!(f, "{}{client}:", if is_first { "" } else { "/" })?;
            is_first = false;
            for (index, run) in ops.chunk_by(|a, b| a + 1 == *b).enumerate() {
                let comma = if index > 0 { "," } else { "" };
                match run {
                    [one] => write!(f, "{comma}{one}")?,
                    _ => write!(f, "{comma}{}-{}", run[0], run[run.len() - 1])?,
                }
            }
        }
        if is_first { f.write_str("none") } else { Ok(()) }
    }
}

impl FromStr for Subset {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => return Ok(Subset(None)),
            "none" => return Ok(Subset(Some(Vec::new()))),
            _ => {}
        }
        let wrong = || {
            ScenarioError(format!(
                "\"{text}\" names no operations: all, none, or as in 0:0-5,9/2:3 (client 0's 0 to \
                 5 and 9, client 2's 3)"
            ))
        };
        let mut clients = Vec::new();
        for part in text.split('/') {
            let (client, ops) = part.split_once(':').ok_or_else(wrong)?;
            let client: usize =
                client.parse().ok().filter(|client| *client < 1 << 16).ok_or_else(wrong)?;
            if clients.len() <= client {
                clients.resize(client + 1, Vec::new());
            }
            for run in ops.split(',') {
                let (first, last) = run.split_once('-').unwrap_or((run, run));
                let first: u32 = first.parse().map_err(|_| wrong())?;
                let last: u32 = last.parse().map_err(|_| wrong())?;
                if first > last || last >= 1 << 20 {
                    return Err(wrong());
                }
                clients[client].extend(first..=last);
            }
            clients[client].sort_unstable();
            clients[client].dedup();
        }
        Ok(Subset(Some(clients)))
    }
}
