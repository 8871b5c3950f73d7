//! Value target: bytes that a table of records may hold as a value.

use farleaf::{RecordView, ValueView};

pub(crate) fn run(data: &[u8]) {
    match RecordView::read(data) {
        Ok(view) => {
            let record = view.to_record();
            // INV-RECORD-2: equal records have equal bytes.
            assert_eq!(record.to_bytes(), data, "a record has one encoding");
            if let ValueView::Hash(hash) = view.value {
                assert_eq!(hash.iter().count(), hash.len());
                let last = hash.iter().last();
                assert_eq!(last.and_then(|(name, _)| hash.get(name)), last.map(|(_, value)| value));
            }
        }
        Err(fault) => assert!(!fault.to_string().is_empty()),
    }
}
