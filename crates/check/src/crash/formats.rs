//! Crash formats: nodes so small that a few keys reach every structural change.

use farleaf_engines::{Engine, TableFormat};
use farleaf_harness::lab_table;
use farleaf_index::lab::Variant;
use farleaf_index::{KeyFormat, ValueFormat};

/// A table's format, and its keys and values by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) table: TableFormat,
    /// Bytes of a usual object.
    pub(super) node_bytes: usize,
    /// Bytes of the values that do not fit into a leaf, if there are such.
    record_bytes: usize,
    /// Bytes of memory that each compute server exposes; 0 for none.
    pub(super) expose_bytes: u64,
    /// The engine's variant that the table is of.
    pub(super) variant: Option<&'static Variant>,
}

impl Format {
    /// The formats that each engine is tried with.
    pub(super) fn of(engine: Engine) -> Vec<Format> {
        let tiny = lab_table(engine, "u64-tiny");
        let bytes = lab_table(engine, "short-tiny");
        let of = |name, table| {
            let (node_bytes, record_bytes, expose_bytes, variant) = (256, 0, 0, None);
            Format { name, table, node_bytes, record_bytes, expose_bytes, variant }
        };
        let mut formats = vec![of("u64-tiny", tiny), of("bytes-tiny", bytes)];
        if engine.has_records() {
            formats.push(Format { record_bytes: 200, ..of("records", bytes) });
        }
        for variant in engine.variants() {
            if let Ok(table) = engine.variant_table(variant, tiny.spec) {
                let Variant { name, object_bytes: node_bytes, expose_bytes, .. } = *variant;
                let variant = Some(variant);
                formats.push(Format { node_bytes, expose_bytes, variant, ..of(name, table) });
            }
        }
        formats
    }

    /// Returns whether compute servers expose memory and do regular work on partitions.
    pub(super) fn exposes(&self) -> bool {
        self.expose_bytes > 0
    }

    /// Key `number`; in the order of the numbers.
    pub(super) fn key(&self, number: u32) -> Vec<u8> {
        match self.table.spec.key {
            KeyFormat::Fixed(_) => u64::from(number).to_be_bytes().to_vec(),
            KeyFormat::Bytes { .. } => format!("key:{number:05}").into_bytes(),
        }
    }

    /// A value of key `number` that no other key and no other version has.
    pub(super) fn value(&self, number: u32, version: u32) -> Vec<u8> {
        match self.table.spec.value {
            ValueFormat::Fixed(bytes) => {
                let word = (u64::from(version) << 32 | u64::from(number)).to_le_bytes();
                word.into_iter().cycle().take(bytes).collect()
            }
            ValueFormat::Bytes => {
                let mut value = format!("{number}.{version}").into_bytes();
                while value.len() < self.record_bytes {
                    value.push(b'a' + (value.len() as u32 % 23 + version % 3) as u8);
                }
                value
            }
        }
    }

    /// Sizes of the objects that such tables consist of.
    pub(super) fn object_bytes(&self) -> Vec<usize> {
        let nodes = self.node_bytes;
        if self.record_bytes == 0 { vec![nodes] } else { vec![nodes, self.record_bytes + 24] }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use farleaf_index::bnode::BnodeShape;

    use super::*;

    #[test]
    fn values_are_inline_or_records_by_format() {
        for format in Engine::ALL.iter().flat_map(|engine| Format::of(*engine)) {
            let spec = format.table.spec;
            let node_bytes = Some(format.node_bytes as u32);
            let nodes = BnodeShape { node_bytes, ..BnodeShape::default() };
            let layout = nodes.layout(&spec).unwrap();
            for (number, version) in [(1, 1), (1_200, 2_001)] {
                let (key, value) = (format.key(number), format.value(number, version));
                assert!(spec.takes_key(key.len()) && spec.takes_value(value.len()));
                let is_record = value.len() > layout.inline_value_max();
                assert_eq!(is_record, format.name == "records", "{}", format.name);
                assert!(format.key(number) < format.key(number + 1));
                assert_ne!(value, format.value(number, version + 1));
                assert_ne!(value, format.value(number + 1, version));
            }
        }
    }
}
