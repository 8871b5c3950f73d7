//! Typed options: the settings by which a table is opened as a struct for each engine, beside the names and texts of
//! [`TableOptions::set`].
//!
//! A field that nobody sets keeps its default, also one that a later release adds.
//!
//! ```
//! use farleaf::typed::{DexOptions, Durability};
//! use farleaf::{Farleaf, TableOptions};
//!
//! let db = Farleaf::open("mem:")?;
//! let options = DexOptions { cache_bytes: 1 << 20, durability: Durability::Volatile, ..DexOptions::default() };
//! let table = db.create_table("t", TableOptions::from(options))?;
//! assert_eq!(table.info().engine.name(), "dex");
//! # Ok::<(), farleaf::Error>(())
//! ```

pub use farleaf_engines::art::ArtOptions;
pub use farleaf_engines::dart::{DartOptions, Prefixes};
pub use farleaf_engines::dex::offload::Offload;
pub use farleaf_engines::dex::{Admission, DexOptions, Durability};
pub use farleaf_engines::fptree::FpTreeOptions;
pub use farleaf_engines::p_smart::PSmartOptions;
pub use farleaf_engines::smart::{
    CacheIndex, LeafLock, LeafUpdate, NodeLocks, NodeTypes, OwnerWrites, ReadDelegation,
    SmartOptions,
};
pub use farleaf_index::{BlinkOptions as BTreeOptions, Knobs};

use crate::{Engine, TableOptions};

/// Has a table of an engine made by its options.
macro_rules! from_options {
    ($($options:ident => $engine:ident),+ $(,)?) => {$(
        #[doc = concat!("A table of [`Engine::", stringify!($engine), "`].")]
        impl From<$options> for TableOptions {
            fn from(options: $options) -> Self {
                TableOptions::default().engine(Engine::$engine).options(&options)
            }
        }
    )+};
}

from_options! {
    ArtOptions => Art,
    BTreeOptions => BTree,
    DartOptions => Dart,
    DexOptions => Dex,
    FpTreeOptions => FpTree,
    PSmartOptions => PSmart,
    SmartOptions => Smart,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options that are not the defaults come back whole as the settings of a table, and every engine takes its own.
    fn check<O: Knobs + Into<TableOptions> + PartialEq + std::fmt::Debug>(options: O) {
        assert_ne!(options, O::default());
        let (format, settings) = options.clone().into().split().unwrap();
        assert_eq!(O::read(&settings).unwrap(), options, "{format:?}");
    }

    #[test]
    fn every_engines_options_make_a_table_of_it() {
        check(ArtOptions { cache_bytes: 12_345, ..ArtOptions::default() });
        check(BTreeOptions { bulk_fill: 0.123, ..BTreeOptions::default() });
        check(DartOptions { cache_bytes: 12_345, ..DartOptions::default() });
        let durability = Durability::Volatile;
        check(DexOptions { durability, cache_bytes: 12_345, ..DexOptions::default() });
        check(FpTreeOptions { cache_bytes: 12_345, ..FpTreeOptions::default() });
        check(PSmartOptions { cache_bytes: 12_345, ..PSmartOptions::default() });
        let read_delegation = ReadDelegation::Off;
        check(SmartOptions { read_delegation, ..SmartOptions::default() });
    }

    #[test]
    fn options_of_another_engine_are_refused() {
        let options = TableOptions::from(DexOptions { flush_tasks: 4, ..DexOptions::default() });
        let error = options.engine(Engine::BTree).split().unwrap_err();
        assert!(error.to_string().contains("flush_tasks"), "{error}");
    }
}
