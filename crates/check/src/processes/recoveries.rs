//! Recovery notes: a client notes the recoveries that it makes, and the driver looks for those at once or in vain.
//!
//! Notes are in a file, so that they survive the client. A look is as exact as a client that may be stopped at any
//! moment allows: the driver counts only what certainly was so.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use farleaf::Farleaf;

use super::log::now_ns;

/// Time between two looks.
const LOOK_TIME: Duration = Duration::from_millis(5);
/// Two looks that are further apart say nothing of the time between. The process may have been stopped then, and
/// replaced as a dead one: less than the shortest lease.
const GAP_NS: u64 = 40_000_000;

/// Recoveries of a round, as far as clients lived to note them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recoveries {
    pub(super) begun: u64,
    pub(super) in_vain: u64,
    /// Pairs of recoveries of different processes under way at the same moment.
    pub(super) at_once: u64,
}

/// One look at the counts of a client: the times before and after it, and the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    from_ns: u64,
    to_ns: u64,
    begun: u64,
    done: u64,
    in_vain: u64,
}

impl Look {
    fn is_under_way(&self) -> bool {
        self.begun > self.done + self.in_vain
    }
}

/// Notes the recoveries of a client until one of the flags is set. Without the notes the driver does not learn of them,
/// and nothing else fails.
pub(super) fn note(db: &Farleaf, path: &Path, stop: &AtomicBool, is_cut_off: &AtomicBool) {
    let Ok(mut file) = File::options().create(true).append(true).open(path) else { return };
    // An empty line begins another opening of the pool, whose counts begin at 0.
    let mut lines = "\n".to_owned();
    let mut last = (0, 0, 0);
    while !stop.load(Ordering::Relaxed) && !is_cut_off.load(Ordering::Relaxed) {
        let from_ns = now_ns();
        let Ok(stats) = db.stats() else { return };
        let (counts, to_ns) = (stats.recoveries, now_ns());
        let now = (counts.begun, counts.done, counts.in_vain);
        if now != last || now.0 > now.1 + now.2 {
            last = now;
            lines += &format!("{from_ns} {to_ns} {} {} {}\n", now.0, now.1, now.2);
        }
        if !lines.is_empty() && file.write_all(lines.as_bytes()).is_err() {
            return;
        }
        lines.clear();
        thread::sleep(LOOK_TIME);
    }
}

/// Reads the notes of all clients of a round.
pub(super) fn read(notes: &[PathBuf]) -> Recoveries {
    let texts = notes.iter().map(|path| fs::read_to_string(path).unwrap_or_default());
    let texts: Vec<String> = texts.collect();
    let parts = texts.iter().flat_map(|text| text.split("\n\n"));
    count(&parts.map(looks).collect::<Vec<_>>())
}

/// The looks of one opening. A line that breaks off is left out: its writer was killed.
fn looks(text: &str) -> Vec<Look> {
    let look = |line: &str| {
        let words = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        let [from_ns, to_ns, begun, done, in_vain] = words[..] else { return None };
        Some(Look { from_ns, to_ns, begun, done, in_vain })
    };
    text.lines().filter_map(look).collect()
}

fn count(clients: &[Vec<Look>]) -> Recoveries {
    let mut sum = Recoveries::default();
    let mut all: Vec<(usize, u64, u64)> = Vec::new();
    for (client, looks) in clients.iter().enumerate() {
        sum.begun += looks.last().map_or(0, |look| look.begun);
        // A process that was not heard of for long may have been replaced as dead: what it recovers then is in vain.
        let mut is_gapped = false;
        for pair in looks.windows(2) {
            let (one, next) = (&pair[0], &pair[1]);
            if !one.is_under_way() {
                is_gapped = false;
                continue;
            }
            is_gapped |= next.to_ns - one.from_ns > GAP_NS;
            if is_gapped {
                continue;
            }
            sum.in_vain += next.in_vain - one.in_vain;
            if one.begun == next.begun && next.is_under_way() && one.to_ns < next.from_ns {
                match all.last_mut() {
                    Some((by, _, to_ns)) if *by == client && *to_ns == one.from_ns => {
                        *to_ns = next.from_ns;
                    }
                    _ => all.push((client, one.to_ns, next.from_ns)),
                }
            }
        }
    }
    for (at, (client, from_ns, to_ns)) in all.iter().enumerate() {
        let others = all[at + 1..].iter().filter(|(other, ..)| other != client);
        let is_at_once = |other_from_ns: u64, other_to_ns: u64| {
            other_from_ns.max(*from_ns) < other_to_ns.min(*to_ns)
        };
        sum.at_once += others.filter(|(_, from, to)| is_at_once(*from, *to)).count() as u64;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(looks: &[(u64, u64, u64, u64)]) -> Vec<Look> {
        let line = |(ms, begun, done, in_vain): &(u64, u64, u64, u64)| {
            let ns = ms * 1_000_000;
            format!("{ns} {} {begun} {done} {in_vain}\n", ns + 1000)
        };
        super::looks(&looks.iter().map(line).collect::<String>())
    }

    #[test]
    fn recoveries_at_once_are_seen() {
        let one = lines(&[(100, 1, 0, 0), (105, 1, 0, 0), (110, 1, 0, 0), (115, 1, 1, 0)]);
        let later = lines(&[(111, 1, 0, 0), (116, 1, 0, 0), (121, 1, 1, 0)]);
        let beside = lines(&[(107, 1, 0, 0), (112, 1, 0, 0), (117, 1, 1, 0)]);
        assert_eq!(count(&[one.clone(), later]), Recoveries { begun: 2, in_vain: 0, at_once: 0 });
        assert_eq!(count(&[one, beside]), Recoveries { begun: 2, in_vain: 0, at_once: 1 });
    }

    #[test]
    fn a_recovery_in_vain_is_seen_unless_its_process_was_away() {
        let seen = lines(&[(100, 1, 0, 0), (105, 1, 0, 0), (110, 1, 0, 1)]);
        assert_eq!(count(&[seen]), Recoveries { begun: 1, in_vain: 1, at_once: 0 });
        // Stopped for 900 ms, declared dead, and replaced by another.
        let away = lines(&[(100, 1, 0, 0), (1000, 1, 0, 0), (1005, 1, 0, 0), (1010, 1, 0, 1)]);
        let other = lines(&[(500, 1, 0, 0), (505, 1, 0, 0), (1002, 1, 0, 0), (1007, 1, 1, 0)]);
        assert_eq!(count(&[away, other]), Recoveries { begun: 2, in_vain: 0, at_once: 0 });
    }

    #[test]
    fn a_line_that_breaks_off_is_left_out() {
        assert_eq!(looks("1 2 3 4 5\n6 7 8").len(), 1);
        assert!(looks("\n").is_empty());
    }
}
