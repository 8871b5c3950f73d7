//! Partitions: show the owner of each range of a table, and move ranges between compute servers.

use std::net::SocketAddr;

use farleaf_engines::Engine;
pub use farleaf_fabric::Incarnation as ServerName;
use farleaf_index::Index;
use farleaf_index::compute::{MoveError, OwnedTable, RangeCalls};
use farleaf_pool::Member;

use crate::error::{Error, ErrorKind, Result};
use crate::table::Table;
use crate::thread_context::{Session, ThreadContext};

/// A compute server of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComputeServer {
    /// Its name.
    pub name: ServerName,
    /// The address at which it answers others, if it does.
    pub address: Option<SocketAddr>,
    /// True if it is this process.
    pub is_own: bool,
    /// Bytes of memory that it exposes to the others.
    pub exposed_bytes: u64,
}

impl ComputeServer {
    /// A member of the pool, as the process `me` sees it.
    pub(crate) fn of(member: Member, me: ServerName) -> Self {
        let is_own = member.incarnation == me;
        let Member { incarnation: name, address, region_bytes: exposed_bytes, .. } = member;
        ComputeServer { name, address, is_own, exposed_bytes }
    }
}

/// The keys above `low`, up to and including `high`, of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partition {
    /// Exclusive lower bound; `None` for the first.
    pub low: Option<Vec<u8>>,
    /// Inclusive upper bound; `None` for the last.
    pub high: Option<Vec<u8>>,
    /// Its owner; `None` if nobody owns it at the moment.
    pub owner: Option<ServerName>,
    /// Operations on it that its owner has counted, the older ones less; `None` if it does not say.
    pub operations: Option<u64>,
}

/// Partitions of tables whose engine has owners ([`Traits::owned`](farleaf_index::Traits)). What moves ranges
/// is done by their owner, while everybody goes on using them; nothing is lost whoever dies meanwhile.
///
/// # Errors
/// All fail with [`ErrorKind::Invalid`] for a table of another engine, for bounds that are out of order or no
/// keys of the table, and for ranges that have no owner, or several; with [`ErrorKind::NotFound`] for a
/// compute server that is not there, or does not have the table open; with [`ErrorKind::Unavailable`]
/// if one has died or another range is being moved.
impl Table {
    /// Returns the partitions with their owners, in the order of the keys.
    ///
    /// # Errors
    /// See above.
    pub fn partitions(&self) -> Result<Vec<Partition>> {
        self.with_owned(async |table, session| {
            table.refresh_map(session).await?;
            let loads = table.loads(session, false).await.map_err(Error::from)?;
            let (_, bounds, owners) = table.known_map();
            let ends = bounds.into_iter().map(Some).chain([None]);
            let mut low = None;
            let mut partitions = Vec::new();
            for (high, owner) in ends.zip(owners) {
                let load = loads.iter().find(|load| load.owner == owner && load.low == low);
                partitions.push(Partition {
                    low: std::mem::replace(&mut low, high.clone()),
                    high,
                    owner: (owner.0 != 0).then_some(owner),
                    operations: load.map(|load| load.ops),
                });
            }
            Ok(partitions)
        })
    }

    /// Gives the keys above `low`, up to and including `high`, to `to`. `None` is the end of the key space.
    /// One compute server must own all of them.
    ///
    /// # Errors
    /// See above.
    pub fn move_range(
        &self,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        to: ServerName,
    ) -> Result<()> {
        self.with_owned(async |table, session| {
            check_there(session, to).await?;
            table.move_range(session, low, high, to).await.map_err(Error::from)?;
            Ok(())
        })
    }

    /// Moves boundary `number`, that between the partitions of this number and the next, to `bound`, which
    /// lies in one of the two: its owner gives what is between to the other.
    ///
    /// # Errors
    /// See above; [`ErrorKind::Invalid`] also if there is no such boundary, or the bound is in neither.
    pub fn move_boundary(&self, number: usize, bound: &[u8]) -> Result<()> {
        self.with_owned(async |table, session| {
            table.move_boundary(session, number, bound).await.map_err(Error::from)?;
            Ok(())
        })
    }

    /// Gives `to` about half of what the compute server with the most to do has.
    ///
    /// # Errors
    /// See above.
    pub fn give_share(&self, to: ServerName) -> Result<()> {
        self.with_owned(async |table, session| {
            check_there(session, to).await?;
            table.scale_out(session, to).await.map_err(Error::from)?;
            Ok(())
        })
    }

    /// Lets `who` give all that it has to the owners of what is beside it; how many ranges that were.
    ///
    /// # Errors
    /// See above; [`ErrorKind::Invalid`] also if all keys are its.
    pub fn drain(&self, who: ServerName) -> Result<usize> {
        self.with_owned(async |table, session| {
            check_there(session, who).await?;
            table.scale_in(session, who).await.map_err(Error::from)
        })
    }

    /// The compute servers that have the pool open, by their numbers there.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn compute_servers(&self) -> Result<Vec<ComputeServer>> {
        self.store().compute_servers()
    }

    /// Takes all partitions that nobody has; whether there were any.
    ///
    /// # Errors
    /// See above.
    pub fn take_free(&self) -> Result<bool> {
        if self.core().index().partitions().is_some() {
            // Its partitions are dealt out when it is opened.
            self.core().check_present()?;
            return Ok(false);
        }
        self.with_owned(async |table, session| Ok(table.take_all_free(session).await?))
    }

    fn with_owned<T>(
        &self,
        op: impl AsyncFnOnce(&dyn OwnedTable, &Session) -> Result<T>,
    ) -> Result<T> {
        ThreadContext::run(self.store().core(), async |context| {
            self.core().check_present()?;
            let Some(table) = self.core().index().owned() else {
                return Err(Error::invalid(format!(
                    "table \"{}\" is of the engine {}, which has no partitions: those of {} have",
                    self.name(),
                    self.core().index().engine(),
                    engines_with_owners()
                )));
            };
            let session = context.session().await?;
            let result = op(table, &session).await;
            result.map_err(|error| error.within(format_args!("table \"{}\"", self.name())))
        })
    }
}

/// Names of the engines whose tables have owners.
fn engines_with_owners() -> String {
    let owned = Engine::ALL.iter().filter(|engine| engine.traits().owned);
    owned.map(|engine| engine.name()).collect::<Vec<_>>().join(" and ")
}

/// Refuses a compute server that is no member of the pool.
async fn check_there(session: &Session, who: ServerName) -> Result<()> {
    let members = session.members().await?;
    if members.iter().any(|member| member.incarnation == who) {
        return Ok(());
    }
    let names = members.iter().map(|member| member.incarnation.to_string());
    let names: Vec<String> = names.collect();
    let hint = farleaf_index::suggest::hint(&who.to_string(), names.iter().map(String::as_str));
    let message = format!("no compute server {who} has the pool open{hint}");
    Err(Error::new(ErrorKind::NotFound, message))
}

impl From<MoveError> for Error {
    #[cold]
    fn from(error: MoveError) -> Self {
        let kind = match error {
            MoveError::Index(error) => return error.into(),
            MoveError::UnknownServer(_) => ErrorKind::NotFound,
            MoveError::DeadTarget(_) | MoveError::Busy | MoveError::CalledOff => {
                ErrorKind::Unavailable
            }
            _ => ErrorKind::Invalid,
        };
        Error::new(kind, error.to_string())
    }
}
