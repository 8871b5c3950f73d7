//! redis-benchmark: runs Redis's own bench, and reads the figures of its gets.

use std::process::Output;

use super::{error::RedisError, server::RedisServer, systems::SystemResult};

pub(super) const PROGRAM: &str = "redis-benchmark";
/// The least number of gets. The program counts its time by the millisecond: fewer may take none,
/// and it prints a rate of `inf`.
pub(super) const OPS_MIN: u64 = 20_000;

/// So many commands, or a few more, in whole pipelines. Else the program has done more than it was asked for in the end, and
/// if it looks at that moment, takes its last client's end for a lost server ("All clients disconnected").
pub(super) fn whole(commands: u64, depth: usize) -> u64 {
    commands.next_multiple_of(depth as u64)
}

/// A call of redis-benchmark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gets {
    /// Connections (`-c`).
    pub(super) clients: usize,
    /// Commands under way on each (`-P`).
    pub(super) depth: usize,
    /// Keys that it draws from (`-r`).
    pub(super) keys: u64,
    /// Commands in all; [`OPS_MIN`] if fewer.
    pub(super) ops: u64,
    pub(super) value_bytes: usize,
}

impl Gets {
    /// Runs it against `server`.
    ///
    /// # Errors
    /// `Gone`, `Missing`, `Run`, `Benchmark`, `Figures`.
    pub(super) fn run(&self, server: &RedisServer) -> Result<SystemResult, RedisError> {
        let Gets { clients, depth, keys, value_bytes, ops } = *self;
        let (host, port) = (server.address.ip(), server.address.port());
        let ops = whole(ops.max(OPS_MIN), depth);
        let words = format!(
            "-h {host} -p {port} -c {clients} -P {depth} -d {value_bytes} -r {keys} -n {ops} -t get \
             --csv --precision 3"
        );
        let words: Vec<&str> = words.split(' ').collect();
        result(&server.output(PROGRAM, &words)?)
    }

    /// The call, for people.
    pub(super) fn name(&self) -> String {
        format!("{PROGRAM} -c {} -P {}", self.clients, self.depth)
    }
}

/// Reads the figures of a run's output.
///
/// # Errors
/// `Benchmark`, `Figures`.
pub(super) fn result(output: &Output) -> Result<SystemResult, RedisError> {
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.trim().lines().chain(said.trim().lines()).next().unwrap_or_default();
        let (status, said) = (output.status.to_string(), last.to_owned());
        return Err(RedisError::Benchmark { status, said });
    }
    figures(&said)
}

/// Parses the table that the program prints: a line of names, a line of figures, all in quotes.
fn figures(said: &str) -> Result<SystemResult, RedisError> {
    let missing = |what| RedisError::Figures { what, said: said.trim().to_owned() };
    let mut lines = said.lines().filter(|line| line.starts_with('"'));
    let (Some(names), Some(line)) = (lines.next(), lines.next()) else {
        return Err(missing("two lines"));
    };
    let cells = |line| str::split(line, ',').map(|cell: &str| cell.trim().trim_matches('"'));
    let number = |name: &'static str| {
        let at = cells(names).position(|it| it == name);
        let cell = at.and_then(|at| cells(line).nth(at));
        let number = cell.and_then(|cell| cell.parse::<f64>().ok());
        number.filter(|number| number.is_finite()).ok_or_else(|| missing(name))
    };
    Ok(SystemResult {
        ops_per_s: number("rps")?,
        p50_us: number("p50_latency_ms")? * 1000.0,
        p99_us: number("p99_latency_ms")? * 1000.0,
        ..SystemResult::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SAID: &str = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
        \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
        \"GET\",\"664893.62\",\"0.060\",\"0.016\",\"0.063\",\"0.087\",\"0.127\",\"0.711\"\n";

    #[test]
    fn a_run_ends_with_a_whole_pipeline() {
        assert_eq!(
            [(20_000, 1), (20_000, 64), (20_032, 64)].map(|(n, depth)| whole(n, depth)),
            [20_000, 20_032, 20_032]
        );
    }

    #[test]
    fn figures_are_found_by_their_names() {
        let found = figures(SAID).unwrap();
        let rest = SystemResult::default();
        let wanted = SystemResult { ops_per_s: 664_893.62, p50_us: 63.0, p99_us: 127.0, ..rest };
        assert_eq!(found, wanted);
        let warned = format!("WARNING: Could not fetch server CONFIG\n{SAID}");
        assert_eq!(figures(&warned).unwrap(), found);
    }

    #[test]
    fn output_of_another_form_is_refused() {
        for (said, what) in [
            (String::new(), "two lines"),
            ("GET: 1 requests per second".to_owned(), "two lines"),
            (SAID.replace("rps", "speed"), "rps"),
            (SAID.replace("664893.62", "many"), "rps"),
            (SAID.replace("664893.62", "inf"), "rps"),
            (SAID.replace("p99_latency_ms", "p98"), "p99_latency_ms"),
        ] {
            let error = figures(&said).unwrap_err().to_string();
            assert!(error.contains(&format!("have no {what}")), "{error}");
        }
    }
}
