//! Choices: the parts of a scenario that flags fix.

use std::fmt::Display;
use std::str::FromStr;

use farleaf_engines::Engine;
use farleaf_index::knobs::DURABILITY;
use farleaf_index::suggest::hint;
use farleaf_index::{Setting, Settings};

use super::{Events, Faults, FormatName, Scenario, Subset, TimedFault, Window, Workload, draw};

/// A flag that makes no sense, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScenarioError(pub String);

impl ScenarioError {
    /// There is no `what` called `name`.
    pub(crate) fn name<'a>(
        what: &str,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let (hint, known) = (hint(name, known.iter().copied()), known.join(", "));
        ScenarioError(format!("no {what} is named \"{name}\"{hint} (known: {known})"))
    }
}

/// Most servers of one kind.
const SERVERS_MAX: usize = 16;

/// Pinned parts of a scenario; the rest is drawn from the seed.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "as in Scenario")]
pub struct Choices {
    pub salt: Option<u64>,
    pub engine: Option<Engine>,
    pub format: Option<FormatName>,
    pub settings: Settings,
    pub memory_servers: Option<usize>,
    pub compute_servers: Option<usize>,
    pub clients: Option<usize>,
    pub workload: Option<Workload>,
    pub ops: Option<usize>,
    pub keys: Option<u64>,
    pub preload: Option<u64>,
    pub region_kib: Option<u64>,
    pub expose_kib: Option<u64>,
    pub think_ns: Option<u64>,
    pub impatience: Option<f64>,
    pub faults: Option<Faults>,
    pub window: Option<Window>,
    pub events: Option<Events>,
    pub aged: Option<bool>,
    pub only: Option<Subset>,
}

impl Choices {
    /// The names of all flags that pin something.
    pub const FLAGS: &'static [&'static str] = &[
        "engine",
        "salt",
        "format",
        "set",
        "memory-servers",
        "compute-servers",
        "clients",
        "workload",
        "ops",
        "keys",
        "preload",
        "region-kib",
        "expose-kib",
        "think-ns",
        "impatience",
        "faults",
        "window",
        "event",
        "aged",
        "only",
    ];

    /// Pins the choice of `--flag text`.
    ///
    /// # Errors
    /// [`ScenarioError`] with the fault; nothing was changed.
    pub fn set(&mut self, flag: &str, text: &str) -> Result<(), ScenarioError> {
        let text = text.trim();
        match flag {
            "salt" => self.salt = Some(within(flag, text, 0, u64::MAX)?),
            "engine" => {
                let engine = text.parse().map_err(|_| {
                    let names = Engine::ALL.iter().map(|engine| engine.name());
                    ScenarioError::name("engine", text, names)
                })?;
                self.engine = Some(engine);
            }
            "format" => self.format = Some(text.parse()?),
            "set" => self.settings = read_settings(text)?,
            "memory-servers" => self.memory_servers = Some(within(flag, text, 1, SERVERS_MAX)?),
            "compute-servers" => self.compute_servers = Some(within(flag, text, 1, SERVERS_MAX)?),
            "clients" => self.clients = Some(within(flag, text, 1, 64)?),
            "workload" => self.workload = Some(text.parse()?),
            "ops" => self.ops = Some(within(flag, text, 1, 100_000)?),
            "keys" => self.keys = Some(within(flag, text, 1, 1_000_000)?),
            "preload" => self.preload = Some(within(flag, text, 0, 1_000_000)?),
            "region-kib" => self.region_kib = Some(within(flag, text, 1024, 1 << 20)?),
            "expose-kib" => {
                let kib = within(flag, text, 0, 1 << 20)?;
                if kib % 4 != 0 {
                    let why = format!("--{flag} takes multiples of 4, not \"{text}\"");
                    return Err(ScenarioError(why));
                }
                self.expose_kib = Some(kib);
            }
            "think-ns" => self.think_ns = Some(within(flag, text, 0, 1_000_000_000)?),
            "impatience" => self.impatience = Some(within(flag, text, 0.0, 1.0)?),
            "faults" => self.faults = Some(text.parse()?),
            "window" => self.window = Some(text.parse()?),
            "event" => self.events = Some(text.parse()?),
            "aged" => self.aged = Some(read_yes_or_no(flag, text)?),
            "only" => self.only = Some(text.parse()?),
            _ => {
                let known = Choices::FLAGS.iter().copied();
                return Err(ScenarioError::name("flag", flag, known));
            }
        }
        Ok(())
    }

    /// Pins what `other` pins and these leave open; of settings, those that these do not name.
    #[must_use]
    pub fn or(self, other: Choices) -> Choices {
        let mut settings = other.settings;
        settings.set_all(&self.settings);
        Choices {
            salt: self.salt.or(other.salt),
            engine: self.engine.or(other.engine),
            format: self.format.or(other.format),
            settings,
            memory_servers: self.memory_servers.or(other.memory_servers),
            compute_servers: self.compute_servers.or(other.compute_servers),
            clients: self.clients.or(other.clients),
            workload: self.workload.or(other.workload),
            ops: self.ops.or(other.ops),
            keys: self.keys.or(other.keys),
            preload: self.preload.or(other.preload),
            region_kib: self.region_kib.or(other.region_kib),
            expose_kib: self.expose_kib.or(other.expose_kib),
            think_ns: self.think_ns.or(other.think_ns),
            impatience: self.impatience.or(other.impatience),
            faults: self.faults.or(other.faults),
            window: self.window.or(other.window),
            events: self.events.or(other.events),
            aged: self.aged.or(other.aged),
            only: self.only.or(other.only),
        }
    }

    /// An event of a server that no scenario has, if one is pinned.
    pub fn event_nowhere(&self) -> Option<TimedFault> {
        let computes = self.compute_servers.unwrap_or(SERVERS_MAX);
        let servers = self.memory_servers.unwrap_or(SERVERS_MAX);
        let mut events = self.events.iter().flat_map(|events| &events.0);
        events
            .find(|event| {
                event.kind.compute().is_some_and(|at| at >= computes)
                    || event.kind.server().is_some_and(|at| at >= servers)
            })
            .copied()
    }

    /// The scenario of `seed` with these choices pinned.
    pub fn scenario(&self, seed: u64) -> Scenario {
        draw::scenario(seed, self)
    }
}

impl Scenario {
    /// Draws from `seed` all that `choices` leaves open.
    pub fn from_seed(seed: u64, choices: &Choices) -> Scenario {
        choices.scenario(seed)
    }
}

pub(super) fn yes_or_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn read_yes_or_no(flag: &str, text: &str) -> Result<bool, ScenarioError> {
    [false, true]
        .into_iter()
        .find(|is| yes_or_no(*is) == text)
        .ok_or_else(|| ScenarioError(format!("--{flag} takes yes or no, not \"{text}\"")))
}

/// Settings in the form that `--set` takes: `cache=48KiB,combine=0`, or `none`.
pub(super) fn settings_text(settings: &Settings) -> String {
    let pairs: Vec<String> = settings.iter().map(|(name, text)| format!("{name}={text}")).collect();
    if pairs.is_empty() { "none".to_owned() } else { pairs.join(",") }
}

/// Reads settings, each of which some engine must have.
fn read_settings(text: &str) -> Result<Settings, ScenarioError> {
    if text == "none" {
        return Ok(Settings::default());
    }
    let read = |pair: &str| pair.parse::<Setting>();
    let settings = text.split(',').map(read).collect::<Result<Settings, _>>();
    let settings =
        settings.and_then(|all| Engine::check_some_shaped(Engine::ALL, &all).map(|()| all));
    let settings = settings.map_err(|error| ScenarioError(format!("--set {text}: {error}")))?;
    if settings.get(DURABILITY).is_some_and(|text| text != "logged") {
        let why =
            "a compute server that dies would lose changes, and the lab expects none to be lost";
        return Err(ScenarioError(format!(
            "--set {text}: {DURABILITY} must stay \"logged\": {why}"
        )));
    }
    Ok(settings)
}

fn within<T: FromStr + PartialOrd + Display>(
    flag: &str,
    text: &str,
    least: T,
    most: T,
) -> Result<T, ScenarioError> {
    let number = text.parse().ok().filter(|number| *number >= least && *number <= most);
    number.ok_or_else(|| ScenarioError(format!("--{flag} takes {least} to {most}, not \"{text}\"")))
}
