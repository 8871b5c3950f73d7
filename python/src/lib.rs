//! Extension module: the native half of the Python package `farleaf`.
//!
//! [`store`] and [`table`] have the blocking calls, [`range`] the iterator, [`async_table`] and [`bridge`] the calls of
//! `farleaf.aio`. The Python half (`python/farleaf`) derives from these classes; its stub is `_native.pyi`.

mod async_table;
mod bridge;
mod buffers;
mod error;
mod held;
mod keys;
mod range;
mod store;
mod table;
mod wait;

/// The native half of `farleaf`; use the package instead.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use crate::async_table::AsyncTable;
    #[pymodule_export]
    use crate::bridge::Bridge;
    #[pymodule_export]
    use crate::held::after_fork;
    #[pymodule_export]
    use crate::keys::prefix_end;
    #[pymodule_export]
    use crate::range::Range;
    #[pymodule_export]
    use crate::store::Store;
    #[pymodule_export]
    use crate::table::{Exchange, Table, update_wait};
    #[pymodule_export]
    const UPDATE_ATTEMPTS_MAX: u32 = farleaf_index::UPDATE_ATTEMPTS_MAX;
}
