//! Crash formats: nodes so small that a few keys reach every structural change.

use farleaf_engines::{Engine, TableFormat};
use farleaf_index::bnode::{KeyFormat, ValueFormat};
use farleaf_index::{NodeRoom, PointerCheck};

/// A table's format, and its keys and values by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) table: TableFormat,
    /// Bytes of the values that do not fit into a leaf, if there are such.
    record_bytes: usize,
}

impl Format {
    /// The formats that each engine is tried with.
    pub(super) fn of(engine: Engine) -> Vec<Format> {
        let tiny = TableFormat {
            cap_leaf: Some(4),
            cap_inner: Some(3),
            node_bytes: Some(256),
            ..TableFormat::fixed8(engine)
        };
        let bytes =
            TableFormat { key: KeyFormat::Bytes { max: 40 }, value: ValueFormat::Bytes, ..tiny };
        let mut formats = vec![
            Format { name: "u64-tiny", table: tiny, record_bytes: 0 },
            Format { name: "bytes-tiny", table: bytes, record_bytes: 0 },
        ];
        // An engine without nodes keeps values of any length in one way.
        if engine.traits().splits || engine.traits().radix {
            formats.push(Format { name: "records", table: bytes, record_bytes: 200 });
        }
        if engine.can_reserve() {
            let table = TableFormat { nodes: NodeRoom::Reserve, ..tiny };
            formats.push(Format { name: "reserved", table, record_bytes: 0 });
        }
        if engine.can_point_back() {
            let (nodes, check) = (NodeRoom::Reserve, PointerCheck::Reverse);
            let table = TableFormat { nodes, check, ..tiny };
            formats.push(Format { name: "reverse", table, record_bytes: 0 });
        }
        formats
    }

    /// Nodes have room for all of their slots.
    pub(super) fn reserves(&self) -> bool {
        self.table.nodes == NodeRoom::Reserve
    }

    /// Key `number`; in the order of the numbers.
    pub(super) fn key(&self, number: u32) -> Vec<u8> {
        match self.table.key {
            KeyFormat::Fixed(_) => u64::from(number).to_be_bytes().to_vec(),
            KeyFormat::Bytes { .. } => format!("key:{number:05}").into_bytes(),
        }
    }

    /// A value of key `number` that no other key and no other version has.
    pub(super) fn value(&self, number: u32, version: u32) -> Vec<u8> {
        match self.table.value {
            ValueFormat::Fixed(_) => {
                (u64::from(version) << 32 | u64::from(number)).to_le_bytes().to_vec()
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
        let nodes = self.table.node_bytes() as usize;
        if self.record_bytes == 0 { vec![nodes] } else { vec![nodes, self.record_bytes + 24] }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_inline_or_records_by_format() {
        for format in Engine::ALL.iter().flat_map(|engine| Format::of(*engine)) {
            let layout = format.table.layout().unwrap();
            for (number, version) in [(1, 1), (1_200, 2_001)] {
                let (key, value) = (format.key(number), format.value(number, version));
                assert!(layout.takes_key(key.len()) && layout.takes_value(value.len()));
                let is_record = value.len() > layout.inline_value_max();
                assert_eq!(is_record, format.name == "records", "{}", format.name);
                assert!(format.key(number) < format.key(number + 1));
                assert_ne!(value, format.value(number, version + 1));
                assert_ne!(value, format.value(number + 1, version));
            }
        }
    }
}
