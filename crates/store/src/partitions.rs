//! Partitions: show the owners of a table's ranges or numbered partitions, and move them between compute servers.

use std::net::SocketAddr;

use farleaf_engines::Engine;
pub use farleaf_fabric::Incarnation as ServerName;
use farleaf_index::Index;
use farleaf_index::compute::partitions::{PartitionCalls, PartitionShare as Share};
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

/// The numbered partitions of a table that one compute server has in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionShare {
    /// The compute server; `None` for memory servers.
    pub owner: Option<ServerName>,
    /// Its weight: of several that have the table open, each has partitions in proportion to it. 0 for one that is drained
    /// or leaves, and for memory servers.
    pub weight: u16,
    /// Number of its partitions.
    pub partitions: usize,
    /// Those among them that are closed after a death; changes of their keys wait.
    pub closed: usize,
    /// Those among them that are on their way to another.
    pub moving: usize,
}

impl From<Share> for PartitionShare {
    fn from(share: Share) -> Self {
        let Share { owner, weight, partitions, closed, moving } = share;
        PartitionShare { owner, weight, partitions, closed, moving }
    }
}

/// Partitions of tables whose engine has owners ([`Traits::owned`](farleaf_index::Traits)), which are ranges of keys, or
/// keeps lines in the memory of compute servers ([`Traits::exposes`](farleaf_index::Traits)), where they are numbered. They
/// move while everybody goes on using them; nothing is lost whoever dies meanwhile.
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

    /// The compute servers that have a table with numbered partitions open, with the number of their partitions; and
    /// memory servers if these have some.
    ///
    /// Cost: 3 READs.
    ///
    /// # Errors
    /// See above.
    pub fn partition_shares(&self) -> Result<Vec<PartitionShare>> {
        self.with_numbered(async |table, session| {
            let map = table.newest_partitions(session).await?;
            Ok(map.shares().into_iter().map(PartitionShare::from).collect())
        })
    }

    /// Bytes of memory that a compute server must expose ([`Builder::expose_bytes`](crate::Builder::expose_bytes)) to have
    /// partitions of this table; `None` unless they are numbered. One that exposes less uses the table without.
    ///
    /// Cost: none.
    pub fn expose_bytes_least(&self) -> Result<Option<u64>> {
        ThreadContext::run(self.store().core(), async |context| {
            let Some(table) = self.core().index().partitions() else { return Ok(None) };
            let session = context.session().await?;
            Ok(Some(table.slice_bytes(&session)))
        })
    }

    /// Gives `to` about half of what the compute server with the most to do has. Of a table with numbered partitions,
    /// gives it its share by its weight: it takes that by itself when it opens the table, so this is for one that was
    /// drained. Returns whether it got anything.
    ///
    /// # Errors
    /// See above; [`ErrorKind::Invalid`] also if the table's partitions are numbered and `to` exposes less memory than
    /// they take.
    pub fn give_share(&self, to: ServerName) -> Result<bool> {
        if self.core().index().partitions().is_some() {
            return self.with_numbered(async |table, session| {
                check_exposes(session, to, table.slice_bytes(session)).await?;
                Ok(table.add_share(session, to).await.map_err(Error::from)? > 0)
            });
        }
        self.with_owned(async |table, session| {
            check_there(session, to).await?;
            table.scale_out(session, to).await.map_err(Error::from)?;
            Ok(true)
        })
    }

    /// Lets `who` give all that it has to others: ranges to the owners of what is beside them, numbered partitions as the
    /// ring places them. Returns how many ranges or partitions those were.
    ///
    /// # Errors
    /// See above; [`ErrorKind::Invalid`] also if nobody else could take them: nothing was moved.
    pub fn drain(&self, who: ServerName) -> Result<usize> {
        if self.core().index().partitions().is_some() {
            return self.with_numbered(async |table, session| {
                check_there(session, who).await?;
                table.drain(session, who).await.map_err(Error::from)
            });
        }
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

    /// Takes all partitions that nobody has; whether there were any. Numbered partitions are dealt out when a compute server
    /// opens the table; this moves those whose move was called off then.
    ///
    /// # Errors
    /// See above.
    pub fn take_free(&self) -> Result<bool> {
        if self.core().index().partitions().is_some() {
            return self.with_numbered(async |table, session| {
                table.settle_in(session).await.map_err(Error::from)
            });
        }
        self.with_owned(async |table, session| Ok(table.take_all_free(session).await?))
    }

    fn with_numbered<T>(
        &self,
        op: impl AsyncFnOnce(&dyn PartitionCalls, &Session) -> Result<T>,
    ) -> Result<T> {
        ThreadContext::run(self.store().core(), async |context| {
            self.core().check_present()?;
            let Some(table) = self.core().index().partitions() else {
                return Err(Error::invalid(format!(
                    "table \"{}\" is of the engine {}, which has no numbered partitions",
                    self.name(),
                    self.core().index().engine()
                )));
            };
            let session = context.session().await?;
            let result = op(table, &session).await;
            result.map_err(|error| error.within(format_args!("table \"{}\"", self.name())))
        })
    }

    fn with_owned<T>(
        &self,
        op: impl AsyncFnOnce(&dyn OwnedTable, &Session) -> Result<T>,
    ) -> Result<T> {
        ThreadContext::run(self.store().core(), async |context| {
            self.core().check_present()?;
            if self.core().index().partitions().is_some() {
                return Err(Error::invalid(format!(
                    "table \"{}\" is of the engine {}, whose partitions are numbered and placed by a ring: no range of \
                     keys can be moved; add a share to a compute server, or drain one",
                    self.name(),
                    self.core().index().engine()
                )));
            }
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

/// Refuses a compute server that is no member of the pool, or exposes less than `least` bytes.
async fn check_exposes(session: &Session, who: ServerName, least: u64) -> Result<()> {
    match check_there(session, who).await?.region_bytes {
        0 => Err(Error::invalid(format!(
            "compute server {who} exposes no memory, so it takes no partitions: start it with --expose-bytes {least}, or more"
        ))),
        bytes if bytes < least => Err(Error::invalid(format!(
            "compute server {who} exposes {bytes} bytes of memory, and the table's lines take {least} in this pool: start it \
             with --expose-bytes {least}, or more"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a compute server that is no member of the pool.
async fn check_there(session: &Session, who: ServerName) -> Result<Member> {
    let members = session.members().await?;
    if let Some(member) = members.iter().find(|member| member.incarnation == who) {
        return Ok(*member);
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
