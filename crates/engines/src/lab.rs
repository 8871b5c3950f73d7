//! Lab: passes the demands of the lab and of tests on to the engine ([`farleaf_index::lab`]).

use farleaf_index::lab::{CrashState, Hunt, Lab, LabSize, Variant};
use farleaf_index::{IndexError, KnobError, Knobs, Settings, Spec, TableReport, ValueFormat};
use farleaf_pool::Session;
use fastrand::Rng;

use crate::{Engine, StoredTable, TableFormat};

fn invalid(error: KnobError) -> IndexError {
    IndexError::Invalid(error.to_string())
}

impl Engine {
    /// Seeded bugs that the lab hunts with it, and how.
    pub fn hunts(self) -> Vec<Hunt> {
        on_engine!(self, D => <D as Lab>::hunts())
    }

    /// Its table of that size for such keys and values.
    ///
    /// # Errors
    /// `Invalid` if the engine has no such tables.
    pub fn lab_table(self, size: LabSize, spec: Spec) -> Result<TableFormat, IndexError> {
        let shape = on_engine!(self, D => <D as Lab>::shape(size, &spec).settings());
        TableFormat::new(self, spec).shaped(&shape).map_err(invalid)
    }

    /// Further kinds of tables that it has.
    pub fn variants(self) -> &'static [Variant] {
        on_engine!(self, D => <D as Lab>::variants())
    }

    /// Settings for one run of the lab on tables of that format, drawn from `rng`. The same draws give the
    /// same settings, and every drawn setting is named.
    ///
    /// # Errors
    /// `Invalid` for a format that the engine cannot use.
    pub fn draw(self, rng: &mut Rng, format: &TableFormat) -> Result<Settings, IndexError> {
        let (stated, whole) = (format.shape(), format.complete()?);
        let drawn = on_engine!(self, D => <D as Lab>::draw(rng, &whole.table::<D>(0)?));
        // A setting of the shape that the format states stays as it is.
        Ok(drawn.filtered(|name| stated.get(name).is_none()))
    }

    /// Returns whether one operation between two walks has made the structural change `name`.
    pub fn is_change(self, name: &str, before: &TableReport, after: &TableReport) -> bool {
        on_engine!(self, D => <D as Lab>::is_change(name, before, after))
    }

    /// Crash cases beside those of every engine, by name.
    pub fn crash_cases(self) -> Vec<(&'static str, CrashState)> {
        on_engine!(self, D => <D as Lab>::cases())
    }

    /// Names of the work that the engine does by itself while operations run.
    pub fn background_work(self) -> &'static [&'static str] {
        on_engine!(self, D => <D as Lab>::BACKGROUND)
    }

    /// Bytes of a memory server and of a redo area in the small pools of crash cases.
    pub fn small_pool(self) -> (u64, u32) {
        on_engine!(self, D => (<D as Lab>::SERVER_BYTES, <D as Lab>::REDO_BYTES))
    }

    /// Its tiny table for such keys and values, as that variant has it.
    ///
    /// # Errors
    /// `Invalid` if the engine has no such tables.
    pub fn variant_table(self, variant: &Variant, spec: Spec) -> Result<TableFormat, IndexError> {
        let value = variant.value_bytes.map_or(spec.value, ValueFormat::Fixed);
        let table = self.lab_table(LabSize::Tiny, Spec { value, ..spec })?;
        let settings = farleaf_index::lab::settings(variant.settings);
        let shaped = table.shaped(&settings).map_err(invalid)?;
        shaped.complete().map(|_| shaped)
    }

    /// See [`Lab::GROWS`].
    pub fn grows(self) -> bool {
        on_engine!(self, D => <D as Lab>::GROWS)
    }

    /// See [`Lab::HAS_GUESTS`].
    pub fn has_guests(self) -> bool {
        on_engine!(self, D => <D as Lab>::HAS_GUESTS)
    }

    /// See [`Lab::HAS_RECORDS`].
    pub fn has_records(self) -> bool {
        on_engine!(self, D => <D as Lab>::HAS_RECORDS)
    }

    /// See [`Lab::UNLINKS_LATER`].
    pub fn unlinks_later(self) -> bool {
        on_engine!(self, D => <D as Lab>::UNLINKS_LATER)
    }
}

impl StoredTable {
    /// Makes its nodes look as if they had been changed for ages: their versions wrap soon. Nobody may have the table
    /// open. Does nothing for an engine in which nothing wraps.
    ///
    /// Cost: 2 READs and 1 WRITE for each node.
    ///
    /// # Errors
    /// As [`farleaf_index::Index::verify`].
    pub async fn age(&self, session: &Session) -> Result<(), IndexError> {
        on_engine!(self.format().engine, D => <D as Lab>::age(session, &self.of_engine::<D>()?).await)
    }
}
