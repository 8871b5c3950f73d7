//! Processor affinity: pins threads to the processors that the caller names.

use std::fmt;
use std::fs;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{FabricError, exec};

/// Processors of this machine, for threads that stay on one each. Reads `0,2-3`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors(Vec<usize>);

impl Processors {
    /// Returns their number.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the processor for the thread of that number, in turn. `None` if none were named.
    pub fn of(&self, thread: usize) -> Option<usize> {
        self.0.get(thread.checked_rem(self.0.len())?).copied()
    }

    /// Checks that this process may use them.
    ///
    /// # Errors
    /// [`FabricError::Config`] for one that the machine does not have, or that this process may not use.
    pub fn check(&self) -> Result<(), FabricError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let set = sched_getaffinity(None).map_err(|error| {
            FabricError::Config(format!("cannot ask for this process's processors: {error}"))
        })?;
        let allowed = Processors((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect());
        // If that file cannot be read, assume the allowed processors to be all.
        let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
        let online = online.and_then(|text| text.trim().parse().ok());
        self.check_among(&allowed, online.as_ref().unwrap_or(&allowed)).map_err(FabricError::Config)
    }

    fn check_among(&self, allowed: &Processors, online: &Processors) -> Result<(), String> {
        let Some(cpu) = self.0.iter().find(|cpu| !allowed.0.contains(cpu)) else { return Ok(()) };
        Err(if online.0.contains(cpu) {
            format!(
                "processor {cpu} is not for this process, which may use {allowed}: see its cpuset \
                 (AllowedCPUs= of systemd), or taskset"
            )
        } else {
            format!("there is no processor {cpu} here: this machine has {online}")
        })
    }

    /// Keeps the calling thread, the one of that number, on its processor. If the system no longer allows
    /// that, logs it, and the thread runs where it may.
    pub fn pin(&self, thread: usize) {
        let Some(cpu) = self.of(thread) else { return };
        // Counts the processors of the process, before this thread has but one.
        exec::processors();
        let mut set = CpuSet::new();
        set.set(cpu);
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(thread, cpu, %error, "cannot stay on its processor");
        }
    }
}

impl FromStr for Processors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let wrong =
                || format!("\"{text}\" is not a processor: write numbers and ranges, as in 0,2-3");
            let number = text.trim().parse::<usize>().map_err(|_| wrong())?;
            if number >= CpuSet::MAX_CPU {
                return Err(format!("there is no processor {number} anywhere"));
            }
            Ok(number)
        };
        let mut all = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(format!(
                    "\"{part}\" ends before it begins: write numbers and ranges, as in 0,2-3"
                ));
            }
            if let Some(twice) = (first..=last).find(|cpu| all.contains(cpu)) {
                return Err(format!("processor {twice} is named twice"));
            }
            all.extend(first..=last);
        }
        Ok(Processors(all))
    }
}

/// Writes the form that parsing reads, with neighbours as a range.
impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|left, right| left + 1 == *right);
        for (number, run) in runs.enumerate() {
            let comma = if number > 0 { "," } else { "" };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Processors {
        text.parse().expect(text)
    }

    #[test]
    fn lists_are_read_and_printed() {
        for text in ["0", "0,2-3", "7,5,1-4,1023"] {
            assert_eq!(read(text).to_string(), text);
        }
        let some = read("4, 0-1");
        assert_eq!(some.count(), 3);
        let of: Vec<_> = (0..5).filter_map(|thread| some.of(thread)).collect();
        assert_eq!(of, [4, 0, 1, 4, 0]);
        assert_eq!(Processors::default().of(3), None);
    }

    #[test]
    fn an_invalid_list_is_refused() {
        for (text, what) in [
            ("", "\"\" is not a processor"),
            ("a", "\"a\" is not a processor"),
            ("1,,2", "\"\" is not a processor"),
            ("-1", "\"\" is not a processor"),
            ("3-2", "ends before it begins"),
            ("0-1,1", "processor 1 is named twice"),
            ("0-4000000000", "no processor 4000000000 anywhere"),
        ] {
            let error = text.parse::<Processors>().expect_err(text);
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn missing_and_forbidden_processors_give_different_errors() {
        let (allowed, online) = (read("0-1"), read("0-3"));
        assert_eq!(read("1,0").check_among(&allowed, &online), Ok(()));
        let why = |text| read(text).check_among(&allowed, &online).expect_err(text);
        assert!(why("0,2").contains("processor 2 is not for this process, which may use 0-1"));
        assert!(why("4").contains("no processor 4 here: this machine has 0-3"));
        assert!(Processors::default().check().is_ok());
    }
}
