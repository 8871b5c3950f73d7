//! Table process: a child that makes, fills and drops tables.

use std::sync::atomic::{AtomicBool, Ordering};

use farleaf::{Engine, Error, Farleaf, KeyFormat, Settings, TableOptions, ValueFormat};

use super::spec::{ChildFailed, TablesSpec, may_pass};

/// One in this many tables is left behind on purpose, for the next process that opens the pool.
const LEFT_ONE_IN: u32 = 64;
const KEYS_MAX: u32 = 300;

pub(super) fn run(spec: &TablesSpec, stop: &AtomicBool) -> Result<(), ChildFailed> {
    let engine: Engine =
        spec.engine.parse().map_err(|error| ChildFailed::Fault(format!("{error}")))?;
    let mut rng = fastrand::Rng::with_seed(spec.seed);
    let pool = &*spec.pool;
    let db = Farleaf::open(pool).map_err(|error| ChildFailed::at_start(pool, error))?;
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        one(&db, pool, &format!("{}{number}", spec.prefix), engine, &mut rng)?;
    }
    db.close().or_else(|error| ChildFailed::at_end(pool, error))
}

fn one(
    db: &Farleaf,
    pool: &str,
    name: &str,
    engine: Engine,
    rng: &mut fastrand::Rng,
) -> Result<(), ChildFailed> {
    let failed = |error: Error| match error.kind() {
        // A stopped process keeps the rest from reusing memory.
        kind if may_pass(pool, kind) => ChildFailed::NotStarted(error.to_string()),
        kind => ChildFailed::Fault(format!("{name}: {error} ({kind:?})")),
    };
    let nodes = Settings::default().with("node_bytes", &(1_u32 << rng.u32(9..12)).to_string());
    let options = TableOptions::default().engine(engine).set_all(&engine.known(&nodes));
    let options = match rng.bool() {
        true => options.keys(KeyFormat::Fixed(8)).values(ValueFormat::Fixed(8)),
        false => options.keys(KeyFormat::Bytes { max: 32 }),
    };
    let table = db.create_table(name, options).map_err(failed)?;
    let keys = rng.u32(..KEYS_MAX);
    let pair = |number: u32| (u64::from(number).to_be_bytes(), u64::from(!number).to_be_bytes());
    match rng.u32(..3) {
        0 => table.bulk_load((0..keys).map(pair)).map_err(failed)?,
        1 => table.insert_many((0..keys).map(pair)).map_err(failed)?,
        _ => {
            for (key, value) in (0..keys).map(pair) {
                table.insert(key, value).map_err(failed)?;
            }
            keys.into()
        }
    };
    let mut next = 0;
    for found in table.range(..) {
        let (key, value) = found.map_err(failed)?;
        let expected = pair(next);
        if (key.as_slice(), value.as_slice()) != (&expected.0, &expected.1) {
            let why = format!("{name}: {key:02x?} = {value:02x?} where key {next} belongs");
            return Err(ChildFailed::Fault(why));
        }
        next += 1;
    }
    if next != keys {
        return Err(ChildFailed::Fault(format!(
            "{name}: {next} of {keys} keys, all of them its own"
        )));
    }
    if rng.u32(..LEFT_ONE_IN) > 0 {
        drop(table);
        db.drop_table(name).map_err(failed)?;
    }
    Ok(())
}
