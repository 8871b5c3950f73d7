//! Lab: the seeded bug, the structural change with its crash cases, and the small lists of this engine.

use farleaf_index::lab::{CrashState, Hunt, Lab, LabSize, Order, grow};
use farleaf_index::{Spec, TableReport};

use super::tree::SPLIT_FORGETS_UPPER;
use super::{ExampleOwned, ListsShape};

impl Lab for ExampleOwned {
    const GROWS: bool = false;
    const HAS_RECORDS: bool = false;
    const HAS_GUESTS: bool = false;

    fn hunts() -> Vec<Hunt> {
        vec![Hunt::any(&SPLIT_FORGETS_UPPER)]
    }

    fn shape(size: LabSize, _spec: &Spec) -> ListsShape {
        ListsShape { list_pairs: (size == LabSize::Tiny).then_some(4) }
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        let lists = |report: &TableReport| report.nodes_per_level.first().copied().unwrap_or(0);
        name == "list-split" && lists(before) > 0 && lists(after) == lists(before) + 1
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        vec![
            ("insert-list-split", grow("list-split", Order::Up)),
            ("insert-list-split-left", grow("list-split", Order::Down)),
        ]
    }
}
