//! Lab hooks: the maintenance of the skip table, by the names of its crash cases.

use farleaf_index::IndexError;
use farleaf_pool::Session;

use super::Dart;

/// Makes a skip table and fills it.
const MAKE: &str = "skip-table-make";
/// Makes one, replaces it by one with other lengths, and drops the old one.
const REPLACE: &str = "skip-table-replace";
/// Chooses the lengths by the accesses, and replaces the skip table by one with them.
const ADJUST: &str = "skip-table-adjust";

/// All of them.
pub(super) const WORK: &[&str] = &[MAKE, REPLACE, ADJUST];

impl Dart {
    /// Does the maintenance of that name.
    ///
    /// # Errors
    /// `Invalid` for another name; as [`Dart::maintain`].
    pub(super) async fn maintain_by_name(
        &self,
        session: &Session,
        name: &str,
    ) -> Result<(), IndexError> {
        let invalid = |what: String| IndexError::Invalid(format!("engine dart: {what}"));
        match name {
            MAKE => self.maintain(session).await,
            ADJUST => self.adjust(session).await.map(drop),
            REPLACE => {
                for lengths in ["1", "2+3"] {
                    let refused = |_| invalid(format!("no prefix lengths: {lengths}"));
                    let lengths = lengths.parse().map_err(refused)?;
                    self.set_prefixes(session, &lengths).await?;
                }
                for _ in 0..4 {
                    session.tick().await?;
                    self.maintain(session).await?;
                }
                Ok(())
            }
            _ => Err(invalid(format!("no maintenance is named \"{name}\""))),
        }
    }
}
