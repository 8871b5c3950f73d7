#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;

use super::*;

/// Reads a command line back.
fn read(line: &str) -> Scenario {
    let words: Vec<&str> = line.strip_prefix("farleaf check ").unwrap().split(' ').collect();
    let (mut choices, mut seed) = (Choices::default(), None);
    for pair in words.chunks(2) {
        match pair[0].strip_prefix("--").unwrap() {
            "seed" => seed = pair[1].parse().ok(),
            flag => choices.set(flag, pair[1]).unwrap(),
        }
    }
    choices.scenario(seed.unwrap())
}

#[test]
fn command_lines_give_the_scenario_back() {
    for seed in 0..2_000 {
        let scenario = Scenario::from_seed(seed, &Choices::default());
        assert_eq!(read(&scenario.to_string()), scenario);
        let line = scenario.to_string();
        assert_eq!(line, format!("farleaf check --engine {} --seed {seed}", scenario.engine));
        // And one that was changed, as shrinking does it.
        let mut changed = scenario.clone();
        match seed % 10 {
            0 => changed.clients = 1 + changed.clients % 3,
            1 => changed.ops = 3,
            2 => changed.faults.torn = 0.25,
            3 => changed.events.0.truncate(1),
            4 => changed.window = Window { from: 5, to: 900 },
            5 => changed.keys = 2,
            6 => changed.only = Subset(Some(vec![vec![0, 1, 2, 7], Vec::new(), vec![3]])),
            7 => (changed.compute_servers, changed.expose_kib) = (1, 256),
            8 => changed.aged = !changed.aged,
            _ => changed.salt = 3,
        }
        assert_eq!(read(&changed.to_string()), changed, "{changed}");
    }
}

#[test]
fn seeds_differ_widely() {
    let drawn: Vec<Scenario> =
        (0..500).map(|seed| Scenario::from_seed(seed, &Choices::default())).collect();
    let count =
        |what: &dyn Fn(&Scenario) -> String| drawn.iter().map(what).collect::<BTreeSet<_>>().len();
    assert_eq!(count(&|scenario| scenario.format.to_string()), FormatName::all().len());
    assert_eq!(count(&|scenario| scenario.workload.to_string()), Workload::drawn().count());
    assert_eq!(count(&|scenario| scenario.engine.to_string()), Engine::ALL.len());
    assert!(count(&|scenario| scenario.events.to_string()) > 200);
    assert!(count(&|scenario| scenario.clients.to_string()) >= 6);
    assert!(drawn.iter().any(|scenario| scenario.region_kib < 2048));
    assert!(drawn.iter().filter(|scenario| scenario.aged).count() > 50);
    assert!(drawn.iter().all(|scenario| scenario.clients * scenario.ops <= 700));
}

#[test]
fn names_stand_where_their_variants_are() {
    for (at, workload) in Workload::all().into_iter().enumerate() {
        assert_eq!((workload as usize, workload.name().parse()), (at, Ok(workload)));
    }
    for format in FormatName::all() {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
}

/// With 12,000 keys of `p-smart` and a load of 600, seed 174 drew a pool that had no room for the load.
#[test]
fn a_large_load_has_the_memory_for_it() {
    let choices = Choices { preload: Some(600), ..Choices::default() };
    let regions = (0..200).map(|seed| Scenario::from_seed(seed, &choices).region_kib);
    assert!(regions.min() >= Some(8 << 10));
}

#[test]
fn invalid_flags_are_explained() {
    let refused = |flag: &str, text: &str| Choices::default().set(flag, text).unwrap_err().0;
    assert!(refused("engine", "btre").contains("did you mean \"btree\"?"));
    assert!(refused("format", "u64-tny").contains("did you mean \"u64-tiny\"?"));
    assert!(refused("workload", "xyz").contains("known: mixed"));
    assert!(refused("faults", "tron=1").contains("did you mean \"torn\"?"));
    assert!(refused("faults", "torn=2").contains("0 to 1"));
    assert!(refused("event", "kil:1@5").contains("did you mean \"kill\"?"));
    assert!(refused("event", "kill:1").contains("kill:1@60000"));
    assert!(refused("aged", "1").contains("yes or no"));
    assert!(refused("window", "9..3").contains("no window"));
    assert!(refused("only", "0").contains("names no operations"));
    assert!(refused("clients", "0").contains("1 to 64"));
    assert!(refused("expose-kib", "6").contains("multiples of 4"));
    assert_eq!(
        "stop-with-region:1@5".parse::<TimedFault>().unwrap().to_string(),
        "stop-with-region:1@5"
    );
    assert!(refused("clints", "1").contains("did you mean \"clients\"?"));
}
