//! Walk: goes through a whole pool for `verify` and `stats`, and knows whether others used it meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use farleaf::{ComputeServer, Farleaf, VerifyReport};

use crate::args::WalkArgs;
use crate::errors::Failure;
use crate::output::{Console, counted};

/// Time between two looks whether others have left.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The findings of a walk.
pub(super) struct Walk {
    pub(super) report: VerifyReport,
    /// Other processes that had the pool open, so that the report is not exact.
    pub(super) others: usize,
}

impl Walk {
    /// Walks through `db`, as the only process that has the pool open if `args` say so.
    ///
    /// # Errors
    /// [`Exit::Unavailable`](crate::errors::Exit::Unavailable) if it is to be the only one and is not, for as
    /// long as the console waits.
    pub(super) fn of(db: &Farleaf, args: &WalkArgs, console: &Console) -> anyhow::Result<Walk> {
        let end = Instant::now() + console.wait();
        loop {
            let before = others(db)?;
            if args.exclusive && !before.is_empty() {
                if Instant::now() >= end {
                    return Err(in_use(&before).into());
                }
                thread::sleep(LOOK_EVERY);
                continue;
            }
            let mut report = db.verify()?;
            if before.is_empty() && !report.closes() {
                // A short command may have come and gone: what is wrong stays wrong.
                report = db.verify()?;
            }
            let others = before.len().max(others(db)?.len());
            if !args.exclusive || others == 0 {
                return Ok(Walk { report, others });
            }
        }
    }

    /// True if nothing is wrong; `None` if something looks wrong that changes under way explain.
    pub(super) fn is_sound(&self) -> Option<bool> {
        match self.report.closes() {
            true => Some(true),
            false => (self.others == 0).then_some(false),
        }
    }

    /// Warns if the counts are not exact.
    pub(super) fn warn(&self, console: &Console) {
        if self.others > 0 {
            console.warn(format_args!(
                "in use by {}; these counts are not exact: end them first, and --exclusive makes certain",
                counted(self.others as u64, "compute server")
            ));
        }
    }
}

/// The other processes that have the pool open.
fn others(db: &Farleaf) -> farleaf::Result<Vec<ComputeServer>> {
    let mut servers = db.compute_servers()?;
    servers.retain(|server| !server.is_own);
    Ok(servers)
}

fn in_use(others: &[ComputeServer]) -> Failure {
    let name = |server: &ComputeServer| match server.address {
        Some(address) => format!("{} at {address}", server.name),
        None => server.name.to_string(),
    };
    let names: Vec<String> = others.iter().map(name).collect();
    Failure::unavailable(format!(
        "in use by {} ({}): end them first; --wait TIME waits for them to leave",
        counted(others.len() as u64, "compute server"),
        names.join(", ")
    ))
}
