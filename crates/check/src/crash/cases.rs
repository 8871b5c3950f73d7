//! Crash cases: the actions and starting states that every engine is tried with, and those that it adds.

use farleaf_engines::Engine;
use farleaf_index::lab::{Action, CrashState, INITIAL, Variant, WRITTEN, keys};

/// The cases of an engine's tables, or of a variant of them, by name.
pub(super) fn table(engine: Engine, variant: Option<&Variant>) -> Vec<(&'static str, CrashState)> {
    let background = engine.background_work().iter();
    let background = background.map(|work| (*work, keys(12, Action::Background(work))));
    let cases = common().into_iter().chain(engine.crash_cases()).chain(background);
    let named = variant.and_then(|variant| variant.cases);
    let suits = |(name, state): &(&str, CrashState)| match named {
        Some(named) => named.contains(name),
        None => !state.is_of_variants,
    };
    cases.filter(suits).collect()
}

/// The cases that need no structure.
fn common() -> Vec<(&'static str, CrashState)> {
    let drop_table = CrashState { has_other: true, ..keys(6, Action::DropTable) };
    vec![
        ("get", keys(12, Action::Get(60))),
        ("get-absent", keys(12, Action::Get(61)).cold()),
        ("scan", keys(12, Action::Scan { reverse: false })),
        ("scan-reverse", keys(12, Action::Scan { reverse: true }).cold()),
        ("verify", keys(12, Action::Verify)),
        ("insert-first", keys(0, Action::Insert(10))),
        ("insert-present", keys(12, Action::Insert(60))),
        ("update", keys(12, Action::Update(60))),
        ("update-own", keys(12, Action::Update(60)).by_actor()),
        ("update-absent", keys(12, Action::Update(61))),
        ("upsert-absent", keys(12, Action::Upsert(61)).cold()),
        ("upsert-present", keys(12, Action::Upsert(60))),
        ("remove", keys(12, Action::Remove(60))),
        ("remove-absent", keys(12, Action::Remove(61))),
        ("remove-last", keys(1, Action::Remove(10))),
        ("exchange-change", keys(12, Action::Exchange(60, INITIAL, WRITTEN))),
        ("exchange-differs", keys(12, Action::Exchange(60, WRITTEN, INITIAL))),
        ("exchange-add", keys(12, Action::Exchange(61, 0, WRITTEN))),
        ("exchange-remove", keys(12, Action::Exchange(60, INITIAL, 0))),
        ("bulk-load", keys(0, Action::BulkLoad(9))),
        ("create-table", keys(6, Action::CreateTable)),
        ("create-table-cold", keys(6, Action::CreateTable).cold()),
        ("drop-table", drop_table),
        ("drop-table-own", drop_table.by_actor()),
        ("join", keys(6, Action::Join)),
        ("leave", keys(6, Action::Leave)),
        ("alloc", keys(6, Action::Alloc).cold()),
    ]
}
