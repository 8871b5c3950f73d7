//! Typed options: the settings by which a table is opened, as a struct for each engine. A field that nobody sets keeps its
//! default.

pub use farleaf_index::{BlinkOptions as BTreeOptions, Knobs};

pub use crate::art::ArtOptions;
pub use crate::chime::{ChangeRead, ChimeOptions, PointRead};
pub use crate::dart::{DartOptions, Prefixes};
pub use crate::dex::offload::Offload;
pub use crate::dex::{Admission, DexOptions, Durability};
pub use crate::dmtree::DmTreeOptions;
pub use crate::fptree::FpTreeOptions;
pub use crate::p_sherman::PShermanOptions;
pub use crate::p_smart::PSmartOptions;
pub use crate::registry::EngineOptions;
pub use crate::sherman::{LeafRead, ShermanOptions, WriteBack};
pub use crate::smart::{
    CacheIndex, LeafLock, LeafUpdate, NodeLocks, NodeTypes, OwnerWrites, ReadDelegation,
    SmartOptions,
};

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::Engine;

    /// The options come back whole from their settings, all of which their engine has.
    fn check<O: EngineOptions + PartialEq + Debug>(options: &O) -> Engine {
        assert_ne!(*options, O::default());
        let engine = O::engine();
        let (shape, settings) = engine.split(&options.settings()).unwrap();
        assert_eq!(
            (shape.iter().count(), O::read(&settings).as_ref()),
            (0, Ok(options)),
            "{engine}"
        );
        engine
    }

    #[test]
    fn every_engine_has_options_of_its_own() {
        let cache_bytes = 12_345;
        let engines = [
            check(&ArtOptions { cache_bytes, ..ArtOptions::default() }),
            check(&BTreeOptions { bulk_fill: 0.123, ..BTreeOptions::default() }),
            check(&ChimeOptions { cache_bytes, ..ChimeOptions::default() }),
            check(&DartOptions { cache_bytes, ..DartOptions::default() }),
            check(&DexOptions {
                durability: Durability::Volatile,
                cache_bytes,
                ..DexOptions::default()
            }),
            check(&DmTreeOptions { cache_bytes, ..DmTreeOptions::default() }),
            check(&FpTreeOptions { cache_bytes, ..FpTreeOptions::default() }),
            check(&ShermanOptions { cache_bytes, ..ShermanOptions::default() }),
            check(&PShermanOptions { cache_bytes, ..PShermanOptions::default() }),
            check(&SmartOptions {
                read_delegation: ReadDelegation::Off,
                ..SmartOptions::default()
            }),
            check(&PSmartOptions { cache_bytes, ..PSmartOptions::default() }),
        ];
        let others = Engine::ALL.iter().filter(|engine| !engines.contains(engine));
        assert!(others.copied().all(Engine::is_example));
    }

    #[test]
    fn options_of_another_engine_are_refused() {
        let settings = DexOptions { flush_tasks: 4, ..DexOptions::default() }.settings();
        let error = Engine::BTree.split(&settings).unwrap_err();
        assert!(error.to_string().contains("flush_tasks"), "{error}");
    }
}
