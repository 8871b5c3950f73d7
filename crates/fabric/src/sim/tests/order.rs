//! Order tests: operations tear only where the contract allows it, and chains keep their order.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::Capabilities;

const WORDS: usize = 40;
const BLOCK: u64 = 4096;

/// A value that shows whether a word is whole.
fn stamp(number: u64) -> u64 {
    number << 32 | number
}

/// Writers overwrite a block with ever newer stamps; `look` gets every block that readers see.
fn race(config: SimConfig, look: impl Fn(&[u64]) + 'static) -> Sim {
    let sim = sim(SimConfig { compute_servers: 2, ..config });
    let look = Rc::new(look);
    for client in 0..4 {
        let (writer, reader, look) = (endpoint(&sim, 0), endpoint(&sim, 1), Rc::clone(&look));
        sim.spawn(0, async move {
            for round in 0..300 {
                let number = stamp(round * 4 + client);
                drop(writer.write(at(0, BLOCK), filled(&writer, WORDS, number)).await.unwrap());
            }
        });
        sim.spawn(1, async move {
            for _ in 0..300 {
                let buf = reader.read(at(0, BLOCK), reader.buf(WORDS * 8)).await.unwrap();
                look(buf.words());
            }
        });
    }
    sim.run().unwrap();
    sim
}

fn is_mixed(words: &[u64]) -> bool {
    words.iter().any(|word| *word != words[0])
}

fn is_whole(word: u64) -> bool {
    word >> 32 == word & 0xffff_ffff
}

/// Counts the mixed blocks that readers saw; none may hold a broken word.
fn mixed(config: SimConfig) -> usize {
    let count = Rc::new(Cell::new(0));
    let sum = Rc::clone(&count);
    race(config, move |words| {
        assert!(words.iter().all(|word| is_whole(*word)), "ADV-2");
        sum.set(sum.get() + usize::from(is_mixed(words)));
    });
    count.get()
}

#[test]
fn reads_and_writes_are_torn_only_if_asked() {
    for seed in 0..4 {
        assert_eq!(mixed(config(seed)), 0);
        assert!(mixed(hostile(seed)) > 100);
        let adversary = AdversaryConfig { torn: 0.1, ..Default::default() };
        let some = mixed(SimConfig { adversary, ..config(seed) });
        assert!((1..300).contains(&some), "{some}");
    }
}

#[test]
fn a_read_alone_is_torn_into_two_instants() {
    // A writer of single words, which are never torn themselves: number i goes to word i, in order.
    let sim = sim(hostile(3));
    let (writer, reader) = (endpoint(&sim, 0), endpoint(&sim, 0));
    sim.spawn(0, async move {
        for round in 1.. {
            let mut ops = writer.ops();
            for word in 0..16 {
                ops.write_word(at(0, 8 * word), round);
            }
            drop(writer.chain(ops).await);
            if round == 400 {
                break;
            }
        }
    });
    let inversions = Rc::new(Cell::new(0));
    let sum = Rc::clone(&inversions);
    sim.spawn(0, async move {
        for _ in 0..400 {
            let buf = reader.read(at(0, 0), reader.buf(128)).await.unwrap();
            // Sampled at one instant, a word is never newer than the one before it.
            let newer = buf.words().windows(2).any(|pair| pair[1] > pair[0]);
            sum.set(sum.get() + usize::from(newer));
        }
    });
    sim.run().unwrap();
    assert!(inversions.get() > 5, "{}", inversions.get());
}

#[test]
fn the_next_operation_of_a_chain_waits_for_a_stretched_one() {
    let config = hostile(3);
    let adversary = AdversaryConfig { stretch_ns: 20_000, ..config.adversary.clone() };
    let sim = sim(SimConfig { compute_servers: 2, adversary, ..config });
    let (writer, reader) = (endpoint(&sim, 0), endpoint(&sim, 1));
    let (longest_ns, mixed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let longest = Rc::clone(&longest_ns);
    sim.spawn(0, async move {
        for round in 1..200 {
            let from_ns = writer.now_ns();
            let mut ops = writer.ops();
            ops.write(at(0, BLOCK), filled(&writer, WORDS, round));
            ops.write_word(at(0, 64), round);
            drop(writer.chain(ops).await.unwrap());
            longest.set(longest.get().max(writer.now_ns() - from_ns));
        }
    });
    let sum = Rc::clone(&mixed);
    sim.spawn(1, async move {
        for _ in 0..800 {
            let number = reader.read(at(0, 64), reader.buf(8)).await.unwrap().words()[0];
            let block = reader.read(at(0, BLOCK), reader.buf(8 * WORDS)).await.unwrap();
            // The number is written when the whole block has landed.
            assert!(block.words().iter().all(|word| *word >= number), "{number}");
            sum.set(sum.get() + usize::from(is_mixed(block.words())));
        }
    });
    sim.run().unwrap();
    assert!(longest_ns.get() > 15_000, "{}", longest_ns.get());
    assert!(mixed.get() > 100, "{}", mixed.get());
}

#[test]
fn lines_stay_whole_if_they_are_promised() {
    let capabilities = Capabilities { line_atomic: true, ..Capabilities::NONE };
    let count = Rc::new(Cell::new(0));
    let sum = Rc::clone(&count);
    race(SimConfig { capabilities, ..hostile(1) }, move |words| {
        sum.set(sum.get() + usize::from(is_mixed(words)));
        assert!(words.chunks(8).all(|line| !is_mixed(line)));
    });
    assert!(count.get() > 100);
}

#[test]
fn bytes_land_in_order_if_that_is_promised() {
    let capabilities = Capabilities { write_inorder: true, ..Capabilities::NONE };
    let sim = sim(SimConfig { capabilities, ..hostile(1) });
    let writer = endpoint(&sim, 0);
    sim.spawn(0, async move {
        for round in 0..500 {
            drop(writer.write(at(0, 0), filled(&writer, WORDS, round)).await.unwrap());
        }
    });
    let mut halves = 0;
    while sim.live_tasks() > 0 {
        sim.run_until(sim.now_ns() + 37).unwrap();
        let seen = look(&sim, 0, 0, WORDS);
        assert!(seen.windows(2).all(|pair| pair[0] >= pair[1]), "{seen:?}");
        halves += usize::from(is_mixed(&seen));
    }
    assert!(halves > 50);
}

#[test]
fn unaligned_ranges_are_torn_at_words_too() {
    let sim = sim(SimConfig { compute_servers: 2, ..hostile(1) });
    let (writer, reader) = (endpoint(&sim, 0), endpoint(&sim, 1));
    let mixed = Rc::new(Cell::new(0));
    let sum = Rc::clone(&mixed);
    sim.spawn(0, async move {
        for round in 0..300 {
            let mut buf = writer.buf(45);
            buf.bytes_mut().fill(round as u8);
            drop(writer.write(at(0, 67), buf).await.unwrap());
        }
    });
    sim.spawn(1, async move {
        for _ in 0..300 {
            let buf = reader.read(at(0, 64), reader.buf(51)).await.unwrap();
            assert_eq!(buf.bytes()[..3], [0; 3]);
            let bytes = &buf.bytes()[3..48];
            let whole = |bytes: &[u8]| bytes.iter().all(|byte| *byte == bytes[0]);
            assert!(whole(&bytes[..5]) && bytes[5..].chunks(8).all(whole), "{bytes:?}");
            sum.set(sum.get() + usize::from(!whole(bytes)));
        }
    });
    sim.run().unwrap();
    assert!(mixed.get() > 5);
    assert_eq!(look(&sim, 0, 64, 7)[6] >> 24, 0, "nothing beside the range was touched");
}

/// Writers put a block and then its number, readers get the number and then the block.
fn published(seed: u64, chained: bool) -> usize {
    let sim = sim(SimConfig { compute_servers: 2, ..hostile(seed) });
    let too_old = Rc::new(Cell::new(0));
    let (writer, reader) = (endpoint(&sim, 0), endpoint(&sim, 1));
    sim.spawn(0, async move {
        for round in 1..500 {
            let mut ops = writer.ops();
            ops.write(at(0, BLOCK), filled(&writer, WORDS, round));
            ops.write_word(at(0, 64), round);
            let sent = if chained { writer.chain(ops).await } else { writer.post_many(ops).await };
            drop(sent.unwrap());
        }
    });
    let sum = Rc::clone(&too_old);
    sim.spawn(1, async move {
        for _ in 0..500 {
            let mut ops = reader.ops();
            let number = ops.read(at(0, 64), reader.buf(8));
            let block = ops.read(at(0, BLOCK), reader.buf(WORDS * 8));
            let ops = if chained { reader.chain(ops).await } else { reader.post_many(ops).await }
                .unwrap();
            let number = ops.buf(number).words()[0];
            let old = ops.buf(block).words().iter().any(|word| *word < number);
            sum.set(sum.get() + usize::from(old));
        }
    });
    sim.run().unwrap();
    too_old.get()
}

#[test]
fn chains_take_effect_in_order_and_batches_need_not() {
    for seed in 0..4 {
        assert_eq!(published(seed, true), 0, "F3");
    }
    assert!((0..4).map(|seed| published(seed, false)).sum::<usize>() > 0);
}

#[test]
fn a_chain_sees_its_own_effects() {
    let sim = sim(hostile(2));
    let endpoint = endpoint(&sim, 0);
    sim.block_on(async {
        let mut ops = endpoint.ops();
        ops.write(at(0, 512), filled(&endpoint, 16, 3));
        let cas = ops.cas(at(0, 512), 3, 4);
        let missed = ops.cas(at(0, 520), 9, 4);
        let faa = ops.faa(at(0, 512), 10);
        let read = ops.read(at(0, 512), endpoint.buf(128));
        let mut ops = endpoint.chain(ops).await.unwrap();
        assert_eq!((ops.old(cas), ops.old(missed), ops.old(faa)), (3, 3, 4));
        let mut expected = [3; 16];
        expected[0] = 14;
        assert_eq!(ops.take_buf(read).words(), expected);
    })
    .unwrap();
}

#[test]
fn a_batch_goes_to_several_servers_in_one_round_trip() {
    let sim = sim(SimConfig { memory_servers: 3, network: exact(), ..config(1) });
    let endpoint = endpoint(&sim, 0);
    sim.block_on(async {
        let mut ops = endpoint.ops();
        for server in 0..3 {
            ops.write(at(server, 0), filled(&endpoint, 8, 7));
        }
        drop(endpoint.post_many(ops).await.unwrap());
    })
    .unwrap();
    assert!((2_000..2_300).contains(&sim.now_ns()), "{}", sim.now_ns());
    assert!((0..3).all(|server| look(&sim, server, 0, 8) == [7; 8]));
}

#[test]
fn a_completed_effect_is_visible_to_later_posts() {
    let sim = sim(SimConfig { compute_servers: 2, ..hostile(8) });
    let newest = Rc::new(Cell::new(0));
    for compute in 0..2 {
        let (endpoint, newest) = (endpoint(&sim, compute), Rc::clone(&newest));
        sim.spawn(compute, async move {
            for round in 1..500 {
                if compute == 0 {
                    drop(endpoint.write(at(0, 0), filled(&endpoint, 8, round)).await.unwrap());
                    newest.set(round);
                } else {
                    let least = newest.get();
                    let buf = endpoint.read(at(0, 0), endpoint.buf(64)).await.unwrap();
                    assert!(buf.words().iter().all(|word| *word >= least), "F4");
                }
            }
        });
    }
    sim.run().unwrap();
}

/// A WRITE between the two halves of an atomic is lost, but no atomic ever is.
fn lost_writes(config: SimConfig) -> u64 {
    let sim = sim(config);
    for _ in 0..4 {
        let adder = endpoint(&sim, 0);
        sim.spawn(0, async move {
            for _ in 0..250 {
                adder.faa(at(0, 64), 1).await.unwrap();
                adder.sleep(adder.random() % 4_000).await;
                adder.faa(at(0, 0), 1).await.unwrap();
            }
        });
    }
    let writer = endpoint(&sim, 0);
    let lost = Rc::new(Cell::new(0));
    let sum = Rc::clone(&lost);
    sim.spawn(0, async move {
        for round in 1..300_u64 {
            drop(writer.write(at(0, 0), filled(&writer, 1, round << 32)).await.unwrap());
            let found = writer.faa(at(0, 0), 0).await.unwrap();
            sum.set(sum.get() + u64::from(found >> 32 != round));
        }
    });
    sim.run().unwrap();
    assert_eq!(look(&sim, 0, 64, 1), [1_000], "F2");
    lost.get()
}

#[test]
fn a_write_beside_an_atomic_is_lost_unless_promised() {
    assert_eq!(lost_writes(config(1)), 0);
    assert!(lost_writes(hostile(1)) > 0);
    let capabilities = Capabilities { write_vs_rmw: true, ..Capabilities::NONE };
    assert_eq!(lost_writes(SimConfig { capabilities, ..hostile(1) }), 0);
}
