//! Engine list: the macro that expands the table of engines in `lib.rs`.

/// Expands the table of engines to `Engine`, `AnyIndex` and their dispatch.
macro_rules! engines {
    (($d:tt) $($(#[doc = $doc:literal])* $(#[cfg($cfg:meta)])? $variant:ident: $design:ty,)+) => {
        /// A design of index.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Engine {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $variant,)+
        }

        /// An open table of any engine.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum AnyIndex {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $variant(<$design as ::farleaf_index::engine::Engine>::Table),)+
        }

        impl Engine {
            /// Every engine there is.
            pub const ALL: &'static [Engine] = &[$($(#[cfg($cfg)])? Engine::$variant),+];
        }

        $($(#[cfg($cfg)])? impl $crate::registry::EngineOptions for <$design as ::farleaf_index::engine::Engine>::Options {
            fn engine() -> Engine {
                Engine::$variant
            }
        })+

        impl AnyIndex {
            /// Its engine.
            pub fn engine(&self) -> Engine {
                match self {
                    $($(#[cfg($cfg)])? AnyIndex::$variant(_) => Engine::$variant,)+
                }
            }

            /// Opens a table of whichever engine it is.
            pub(crate) async fn open_stored(
                session: &::farleaf_pool::Session,
                table: &$crate::StoredTable,
                options: &::farleaf_index::OpenOptions,
            ) -> Result<AnyIndex, ::farleaf_index::IndexError> {
                Ok(match table.format().engine {
                    $($(#[cfg($cfg)])? Engine::$variant => {
                        AnyIndex::$variant($crate::registry::open::<$design>(session, table, options).await?)
                    })+
                })
            }
        }

        #[cfg(feature = "lab")]
        impl AnyIndex {
            /// Does some of [`Engine::background_work`] at once.
            ///
            /// # Errors
            /// `Invalid` for a name that is not in that list; those of the work.
            pub async fn work_in_background(
                &self,
                session: &::farleaf_pool::Session,
                name: &str,
            ) -> Result<(), ::farleaf_index::IndexError> {
                use farleaf_index::lab::Lab;
                match self {
                    $($(#[cfg($cfg)])? AnyIndex::$variant(table) => {
                        <$design as Lab>::work_in_background(table, session, name).await
                    })+
                }
            }
        }

        /// Evaluates an expression with a type that stands for the engine's design.
        macro_rules! on_engine {
            ($d engine:expr, $d type:ident => $d call:expr) => {
                match $d engine {
                    $($(#[cfg($cfg)])? $crate::Engine::$variant => {
                        type $d type = $design;
                        $d call
                    })+
                }
            };
        }

        /// Evaluates an expression with the open table.
        macro_rules! on_table {
            ($d table:expr, $d open:ident => $d call:expr) => {
                match $d table {
                    $($(#[cfg($cfg)])? $crate::AnyIndex::$variant($d open) => $d call,)+
                }
            };
        }
    };
}
