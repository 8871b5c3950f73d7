//! Which leaves the engine `dex` keeps: what that costs in READs, with keys of which some are wanted much
//! more than others.

use crate::common::{Pairs, World, cost_since, costs};
use crate::tables::{create, open};
use farleaf_fabric::{Endpoint, OpKind};
use farleaf_index::dex::{Admission, DexOptions, Durability};
use farleaf_index::{Engine, Index, TableFormat};
use farleaf_pool::Session;

const KEYS: u64 = 40_000;
const GETS: u64 = 60_000;

/// Ranks by Zipf's law with exponent 0.99.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new() -> Self {
        let mut sum = 0.0;
        let step = |rank: u64| {
            sum += 1.0 / (rank as f64).powf(0.99);
            sum
        };
        Zipf((1..=KEYS).map(step).collect())
    }

    fn rank(&self, rng: &mut fastrand::Rng) -> u64 {
        let all = self.0.last().copied().unwrap_or(1.0);
        let at = rng.f64() * all;
        self.0.partition_point(|sum| *sum < at) as u64
    }
}

/// What is wanted most is another every so many gets, or never.
async fn reads_each<E: Endpoint>(
    session: &Session<E>,
    zipf: &Zipf,
    shift: Option<u64>,
    admission: Admission,
) -> f64 {
    let made = create(session, &TableFormat::fixed8(Engine::BTree)).await;
    let durability = Durability::Volatile;
    let options = DexOptions { durability, admission, ..DexOptions::default() };
    // 953 leaves below 24 inner nodes: a tenth.
    let index = open(made, 98, options);
    let pairs: Vec<_> =
        (0..KEYS).map(|key| (key.to_be_bytes().to_vec(), key.to_be_bytes().to_vec())).collect();
    assert_eq!(index.bulk_load(session, &mut Pairs(pairs.iter())).await, Ok(KEYS));
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut value, mut before) = (Vec::new(), costs(session));
    for number in 0..2 * GETS {
        if number == GETS {
            before = costs(session);
        }
        let turned = shift.map_or(0, |every| number / every * 7_919);
        let key = (zipf.rank(&mut rng) * 24_593 + turned) % KEYS;
        assert_eq!(index.get(session, &key.to_be_bytes(), &mut value).await, Ok(true));
    }
    let reads = cost_since(session, &before, OpKind::Get).reads;
    assert_eq!(index.check_cache(), Vec::<String>::new());
    index.destroy(session).await.expect("destroy");
    reads as f64 / GETS as f64
}

/// Keeping leaves seldom pays as long as the same keys are wanted, and keeping all where that changes;
/// either is worth less than a tenth. Keeping those that are missed again is better than both in both cases. What
/// is given up for them counts, too: where the first random victim went, used or not, the better of the two took as
/// many READs as stand here. Where it was known only whether a node had been used, and not how often, those that
/// are missed again took what stands last: knowing more pays for the same keys, and costs little for others.
async fn seldom_always_or_again<E: Endpoint>(session: Session<E>) {
    let zipf = Zipf::new();
    for (name, shift, any_victim, once_used) in [
        ("the same keys", None, 0.710, 0.98 * 0.607),
        ("others every 2,000", Some(2_000), 0.725, 1.02 * 0.650),
    ] {
        let seldom = reads_each(&session, &zipf, shift, Admission::LAZY).await;
        let always = reads_each(&session, &zipf, shift, Admission::EAGER).await;
        let again = reads_each(&session, &zipf, shift, Admission::Again).await;
        println!("{name}: {seldom:.3} READs a get with 0.1, {always:.3} with 1, {again:.3} again");
        let (better, other) = if shift.is_none() { (seldom, always) } else { (always, seldom) };
        assert!(better < other && other < 1.1 * better, "{name}: {seldom} {always}");
        assert!(better < 0.96 * any_victim, "{name}: {better} {any_victim}");
        assert!(again < 0.99 * better && again < 0.92 * any_victim, "{name}: {again} {better}");
        assert!(again < once_used, "{name}: {again} {once_used}");
    }
}

#[test]
fn leaves_that_are_missed_again_are_those_to_keep() {
    World::default().on_mapped(seldom_always_or_again);
}
