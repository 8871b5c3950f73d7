//! Machine: describes the machine of a run, so that a figure keeps its circumstances.

use std::{env::consts, fs};

use serde::{Deserialize, Serialize};

/// A machine. An unknown property is `None`, and `null` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model.
    pub cpu: Option<String>,
    /// Processors that the system runs on (hardware threads).
    pub cores: Option<u64>,
    /// Main memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The kernel and its release.
    pub os: Option<String>,
    /// The instruction set.
    pub arch: Option<String>,
}

impl Machine {
    /// This machine, by `/proc`.
    pub fn detect() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let kernel = [read("/proc/sys/kernel/ostype"), read("/proc/sys/kernel/osrelease")];
        Self::from_proc(&read("/proc/cpuinfo"), &read("/proc/meminfo"), kernel)
    }

    /// Builds it from the contents of the files, which may be empty.
    fn from_proc(cpuinfo: &str, meminfo: &str, kernel: [String; 2]) -> Self {
        let cores = fields(cpuinfo, "processor").count() as u64;
        // ARM boards name the whole board instead, in "Model".
        let cpu = fields(cpuinfo, "model name").chain(fields(cpuinfo, "Model")).next();
        let memory_bytes = fields(meminfo, "MemTotal")
            .next()
            .and_then(|size| size.strip_suffix("kB"))
            .and_then(|size| size.trim().parse::<u64>().ok())
            .and_then(|kib| kib.checked_mul(1024));
        let kernel = kernel.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
        let os = if kernel.is_empty() { consts::OS.to_owned() } else { kernel };
        Self {
            cpu: cpu.map(str::to_owned),
            cores: (cores > 0).then_some(cores),
            memory_bytes,
            os: Some(os),
            arch: Some(consts::ARCH.to_owned()),
        }
    }
}

/// The values of the lines `name: value`, without those that are empty.
fn fields<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(move |(field, _)| field.trim() == name)
        .map(|(_, value)| value.trim())
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_understood() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\n\nprocessor\t: 1\n\
            model name\t: Some CPU @ 2.00GHz\n";
        let meminfo = "MemTotal:       16384000 kB\nMemFree:  1 kB\n";
        let kernel = ["Linux\n".to_owned(), "6.1.0\n".to_owned()];
        let machine = Machine::from_proc(cpuinfo, meminfo, kernel);
        assert_eq!(machine.cpu.as_deref(), Some("Some CPU @ 2.00GHz"));
        assert_eq!(machine.cores, Some(2));
        assert_eq!(machine.memory_bytes, Some(16_384_000 * 1024));
        assert_eq!(machine.os.as_deref(), Some("Linux 6.1.0"));
        assert_eq!(machine.arch.as_deref(), Some(consts::ARCH));
    }

    #[test]
    fn missing_parts_are_none() {
        let machine = Machine::from_proc("", "MemTotal: many\n", Default::default());
        assert_eq!((machine.cpu, machine.cores, machine.memory_bytes), (None, None, None));
        assert_eq!(machine.os.as_deref(), Some(consts::OS));
        let arm = Machine::from_proc("processor : 0\nModel : Board 5\n", "", Default::default());
        assert_eq!(arm.cpu.as_deref(), Some("Board 5"));
    }

    #[test]
    fn this_machine_is_found() {
        assert!(Machine::detect().arch.is_some());
        assert_eq!(Machine::detect(), Machine::detect());
    }
}
