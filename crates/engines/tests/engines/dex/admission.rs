//! Admission tests: READs of `dex` by its admission policy, with keys of skewed popularity.

use super::tables::{create, open};
use crate::common::{Pairs, World, cost_since, costs};
use farleaf_engines::dex::{Admission, Dex, DexOptions, Durability};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::OpKind;
use farleaf_index::Index;
use farleaf_pool::Session;

const KEYS: u64 = 40_000;
const GETS: u64 = 60_000;
/// Sequences of random numbers that admission by chance is measured with.
const SEQUENCES: u64 = 4;

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
async fn reads_each(
    session: &Session,
    zipf: &Zipf,
    shift: Option<u64>,
    admission: Admission,
) -> f64 {
    let made = create(session, &TableFormat::fixed8(Engine::BTree)).await;
    let durability = Durability::Volatile;
    let options = DexOptions { durability, admission, ..DexOptions::default() };
    // 953 leaves below 24 inner nodes: a tenth.
    let index = open(session, made, 98, options).await;
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
    assert_eq!(index.tree().check_cache(), Vec::<String>::new());
    Dex::destroy(&index, session).await.expect("destroy");
    reads as f64 / GETS as f64
}

/// What a get took when the cache knew less of what to give up: READs.
struct Before {
    /// The better of seldom and always, when the first random victim went, used or not.
    any_victim: f64,
    /// The same, and those that are missed again, when it was known whether a node had been used, not how often.
    marked: f64,
    marked_again: f64,
}

/// Keeping leaves seldom pays as long as the same keys are wanted, and keeping all where that changes; either is
/// worth less than a tenth. Keeping those that are missed again is better than both in both cases. What is given up for them counts, too: nothing takes
/// more than a few per cent over the better of the two as it was before uses were counted, and those that are missed
/// again take less, less than before for the same keys, little more for others.
async fn seldom_always_or_again(session: Session) {
    let zipf = Zipf::new();
    let same = Before { any_victim: 0.710, marked: 0.657, marked_again: 0.607 };
    let others = Before { any_victim: 0.725, marked: 0.686, marked_again: 0.650 };
    for (name, shift, before) in
        [("the same keys", None, same), ("others every 2,000", Some(2_000), others)]
    {
        // Chance differs by 0.003 from one sequence of random numbers to the next: the mean of some.
        let mut seldom = 0.0;
        for seed in 1..=SEQUENCES {
            session.endpoint().seed(seed);
            seldom += reads_each(&session, &zipf, shift, Admission::LAZY).await / SEQUENCES as f64;
        }
        let always = reads_each(&session, &zipf, shift, Admission::EAGER).await;
        let again = reads_each(&session, &zipf, shift, Admission::Again).await;
        println!("{name}: {seldom:.3} READs a get with 0.1, {always:.3} with 1, {again:.3} again");
        let (better, other) = if shift.is_none() { (seldom, always) } else { (always, seldom) };
        assert!(better < other && other < 1.1 * better, "{name}: {seldom} {always}");
        assert!(other < 1.05 * before.marked, "{name}: {other}");
        assert!(better < 0.96 * before.any_victim, "{name}: {better}");
        assert!(again < 0.99 * better && again < 0.96 * before.marked, "{name}: {again} {better}");
        assert!(again < 0.92 * before.any_victim, "{name}: {again}");
        let most = if shift.is_none() { 0.98 } else { 1.02 };
        assert!(again < most * before.marked_again, "{name}: {again}");
    }
}

#[test]
fn leaves_that_are_missed_again_are_those_to_keep() {
    World::default().on_mapped(seldom_always_or_again);
}
