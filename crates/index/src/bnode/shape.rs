//! Shape of B+-trees: the geometry of their nodes, as far as it is not left to the engine.

use super::{Layout, LayoutError, LayoutOptions};
use crate::{IndexError, KeyFormat, KnobKind, Spec, TableSpec, ValueFormat};

crate::shape! {
    /// The geometry of a B+-tree's nodes, as far as it is not left to the engine.
    pub struct BnodeShape {
        /// Bytes of a node, a power of two. The engine takes 1024 for short keys and values of fixed length,
        /// else 4096, or as much as the longest key needs.
        "node_bytes" => node_bytes: Option<u32> = None, KnobKind::Bytes { min: 256, max: 64 << 10 }, paper "1 KB (DEX, section 7.1)";
        /// Most entries of a leaf, if fewer than fit.
        "cap_leaf" => cap_leaf: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "entries" };
        /// Most separators of an inner node, if fewer than fit.
        "cap_inner" => cap_inner: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "separators" };
    }
}

impl BnodeShape {
    /// The bytes of a node of such a table, which the engine chooses if the shape does not.
    pub(crate) fn bytes_of_node(&self, spec: &Spec) -> usize {
        let usual = match (spec.key, spec.value) {
            (KeyFormat::Fixed(key), ValueFormat::Fixed(value)) if key <= 64 && value <= 64 => 1024,
            _ => 4096,
        };
        self.node_bytes.map_or(usual, |bytes| bytes as usize)
    }

    /// The layout of nodes of such a table, bound to no table yet.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn layout(&self, spec: &Spec) -> Result<Layout, LayoutError> {
        let BnodeShape { cap_leaf, cap_inner, .. } = *self;
        let bytes = LayoutOptions::new(self.bytes_of_node(spec), spec.key, spec.value);
        Layout::new(LayoutOptions { cap_leaf, cap_inner, ..bytes })
    }
}

impl Layout {
    /// The layout of a table's nodes.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn of(table: &TableSpec<BnodeShape>) -> Result<Layout, LayoutError> {
        Ok(table.shape.layout(&table.spec)?.for_tree(table.number))
    }

    /// The table that it is the layout of.
    pub fn table(&self) -> TableSpec<BnodeShape> {
        let LayoutOptions { node_bytes, key, value, cap_leaf, cap_inner } = *self.options();
        let shape = BnodeShape { node_bytes: Some(node_bytes as u32), cap_leaf, cap_inner };
        TableSpec { spec: Spec { key, value }, shape, number: self.tree() }
    }
}

impl From<LayoutError> for IndexError {
    fn from(error: LayoutError) -> Self {
        IndexError::Invalid(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    #[test]
    fn a_shape_is_completed_once() {
        for (spec, bytes) in [(Spec::FIXED8, 1024), (Spec::ANY, 4096)] {
            let whole = BnodeShape::default().complete(&spec).expect("a shape");
            assert_eq!(whole.node_bytes, Some(bytes));
            assert_eq!(whole.complete(&spec), Ok(whole));
            let table = TableSpec { spec, shape: whole, number: 7 };
            assert_eq!(Layout::of(&table).map(|layout| layout.table()), Ok(table));
        }
        let odd = BnodeShape { node_bytes: Some(1000), ..BnodeShape::default() };
        let told = odd.complete(&Spec::FIXED8).expect_err("no power of two").to_string();
        assert!(told.contains("node size 1000 is not a power of two"), "{told}");
    }
}
