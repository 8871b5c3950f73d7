//! Settings: read settings from the environment and from a file.
//!
//! The command line counts first, then the environment, then the file, then the default. Every option
//! has a name in each: `--lease` of `farleaf memory` is `FARLEAF_MEMORY_LEASE`, and `lease` of the
//! file's table `[memory]`; options that all commands take have no command in their name, and may also
//! be set for one command: `--listen` is `FARLEAF_LISTEN`, and `FARLEAF_MEMORY_LISTEN` counts before
//! it. They are put on the [`Command`] before the command line is read, so that one definition makes
//! all of them.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::error::ContextKind;
use clap::{Arg, ArgAction, Command};
use farleaf_index::suggest::hint;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::errors::Failure;
use crate::etcd::PASSWORD;

/// The variable that names the file; an empty one means none.
const CONFIG: &str = "FARLEAF_CONFIG";

/// Settings of a file, by command and option.
#[derive(Debug, Default)]
pub(crate) struct Config {
    path: PathBuf,
    /// By the words of the command, none for those of all commands; then by the option's name.
    tables: BTreeMap<Vec<String>, BTreeMap<String, Setting>>,
}

/// The file's value of one option.
#[derive(Debug)]
struct Setting {
    values: Vec<String>,
    line: usize,
}

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Environment(String),
    File(PathBuf, usize),
    Default,
    Unset,
}

impl Config {
    /// Reads the file that the command line or the environment names, or else the first that is there of the
    /// user's and the machine's; nothing if there is none. `command` is what there are options of.
    ///
    /// # Errors
    /// A usage error for a file that is named and not there, cannot be read, is no TOML, or names what
    /// `command` does not have.
    pub(crate) fn find(command: &Command, arguments: &[OsString]) -> Result<Config, Failure> {
        let named = word_of(arguments, "--config").or_else(|| env::var_os(CONFIG));
        let found = match named.map(PathBuf::from) {
            Some(path) if path.as_os_str().is_empty() => None,
            Some(path) => match fs::read_to_string(&path) {
                Ok(text) => Some((path, text)),
                Err(error) => return Err(Failure::unreadable(path.display(), error)),
            },
            None => usual_file()?,
        };
        let Some((path, text)) = found else { return Ok(Config::default()) };
        Config::parse(command, path, &text)
    }

    fn parse(command: &Command, path: PathBuf, text: &str) -> Result<Config, Failure> {
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Failure::usage(format!("{}: {}", place(&path, text, at), error.message()))
        })?;
        let mut config = Config { path, tables: BTreeMap::new() };
        config.read(command, command, &mut Vec::new(), table.get_ref(), text)?;
        Ok(config)
    }

    /// Reads the table of the command with these words, and of the commands below it. What all commands take
    /// are the options of `all`.
    fn read(
        &mut self,
        all: &Command,
        command: &Command,
        words: &mut Vec<String>,
        table: &DeTable<'_>,
        text: &str,
    ) -> Result<(), Failure> {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let at = place(&self.path, text, key.span().start);
            if let Some(inner) = value.get_ref().as_table() {
                let Some(below) = command.find_subcommand(name) else {
                    let known = command.get_subcommands().map(Command::get_name);
                    let hint = hint(name, known);
                    return Err(Failure::usage(format!("{at}: there is no command {name}{hint}")));
                };
                words.push(name.to_owned());
                self.read(all, below, words, inner, text)?;
                words.pop();
                continue;
            }
            let args = || settable(command).chain(settable(all));
            let Some(arg) = args().find(|arg| name_of(arg) == name) else {
                let known: Vec<String> = args().map(name_of).collect();
                let hint = hint(name, known.iter().map(String::as_str));
                let of = if words.is_empty() { "all commands".to_owned() } else { words.join(" ") };
                return Err(Failure::usage(format!("{at}: {of} has no option {name}{hint}")));
            };
            let values = values_of(arg, value)
                .map_err(|why| Failure::usage(format!("{at}: {name} {why}")))?;
            let line = line_of(text, key.span().start);
            let settings = self.tables.entry(words.clone()).or_default();
            settings.insert(name.to_owned(), Setting { values, line });
        }
        Ok(())
    }

    /// `command` with the file's settings as defaults, and with the names of the environment.
    pub(crate) fn apply(&self, command: Command) -> Command {
        let all: Vec<Arg> = settable(&command).cloned().collect();
        self.apply_at(command, &all, &mut Vec::new())
    }

    fn apply_at(&self, command: Command, all: &[Arg], words: &mut Vec<String>) -> Command {
        let alone = sole_positional(&command).map(|arg| arg.get_id().clone());
        let of = words.clone();
        let command = command.mut_args(|arg| {
            let is_alone = alone.as_ref() == Some(arg.get_id());
            if is_settable(&arg, is_alone) { self.apply_to(arg, &of) } else { arg }
        });
        // Options of all commands, where they are set for this one: of the two, clap takes the one that is set on
        // the command line rather than by the environment, and by that rather than by a file, and else this.
        let own = all.iter().filter(|arg| !words.is_empty() && self.is_set(arg, words));
        let command = command.args(own.map(|arg| self.apply_to(arg.clone(), words)));
        command.mut_subcommands(|below| {
            words.push(below.get_name().to_owned());
            let below = self.apply_at(below, all, words);
            words.pop();
            below
        })
    }

    /// The option with its name in the environment and the file's setting, both for the command with these
    /// words.
    fn apply_to(&self, arg: Arg, words: &[String]) -> Arg {
        let name = name_of(&arg);
        // The rule is told once, for all of them.
        let mut arg = arg.env(variable_of(words, &name)).hide_env(true);
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            arg = arg.value_parser(BoolishValueParser::new());
        }
        match self.tables.get(words).and_then(|settings| settings.get(&name)) {
            Some(setting) => arg.required(false).default_values(setting.values.clone()),
            None => arg,
        }
    }

    /// Returns whether the environment or the file says something for the command with these words.
    fn is_set(&self, arg: &Arg, words: &[String]) -> bool {
        let name = name_of(arg);
        self.tables.get(words).is_some_and(|settings| settings.contains_key(&name))
            || env::var_os(variable_of(words, &name)).is_some()
    }

    /// Checks that the file's settings of each command make sense together, as if they stood on the command
    /// line. `plain` is without them.
    ///
    /// # Errors
    /// A usage error with what the command line would be told.
    pub(crate) fn check(&self, plain: &Command) -> Result<(), Failure> {
        for (words, settings) in &self.tables {
            let command = command_at(plain, words).unwrap_or(plain);
            let alone = sole_positional(command).map(name_of);
            let mut line = [vec![plain.get_name().to_owned()], words.clone()].concat();
            for (name, setting) in settings {
                let is_flag = settable(command)
                    .chain(settable(plain))
                    .any(|arg| name_of(arg) == *name && !arg.get_action().takes_values());
                match setting.values.as_slice() {
                    [value] if is_flag => {
                        line.extend((value == "true").then(|| format!("--{name}")));
                    }
                    values if alone.as_ref() == Some(name) => line.extend_from_slice(values),
                    values => line.extend(values.iter().map(|value| format!("--{name}={value}"))),
                }
            }
            let Err(error) = relax(plain.clone()).try_get_matches_from(line) else { continue };
            let setting = option_of(&error).and_then(|name| settings.get(&name));
            let at = setting.map(|setting| format!(":{}", setting.line)).unwrap_or_default();
            return Err(Failure::usage(format!("{}{at}: {}", self.path.display(), brief(&error))));
        }
        Ok(())
    }

    /// The file that was read.
    pub(crate) fn path(&self) -> Option<&Path> {
        Some(self.path.as_path()).filter(|path| !path.as_os_str().is_empty())
    }

    /// Returns the options of the command with these words without a command line: name, value, origin.
    /// `configured` is what [`Config::apply`] gave.
    ///
    /// # Errors
    /// A usage error if there is no such command, or a value of the environment is invalid.
    pub(crate) fn settings(
        &self,
        configured: &Command,
        words: &[String],
    ) -> Result<Vec<(String, String, Origin)>, Failure> {
        let relaxed = relax(configured.clone());
        let line = [vec![configured.get_name().to_owned()], words.to_vec()].concat();
        let matches = relaxed.clone().try_get_matches_from(line);
        let matches = matches.map_err(|error| Failure::usage(brief(&error)))?;
        let (mut matches, mut command) = (&matches, &relaxed);
        for word in words {
            let (Some(below), Some(inner)) =
                (command.find_subcommand(word), matches.subcommand_matches(word))
            else {
                return Err(Failure::usage(format!("there is no command {}", words.join(" "))));
            };
            (command, matches) = (below, inner);
        }
        let mut all = Vec::new();
        for arg in settable(command) {
            let (id, name) = (arg.get_id().as_str(), name_of(arg));
            let values = matches.get_raw(id).into_iter().flatten();
            let values: Vec<_> = values.map(|value| value.to_string_lossy().into_owned()).collect();
            let setting = self.tables.get(words).and_then(|settings| settings.get(&name));
            let origin = match (matches.value_source(id), setting) {
                (Some(clap::parser::ValueSource::EnvVariable), _) => {
                    // It may be set for all commands.
                    let set = (0..=words.len()).rev().map(|end| variable_of(&words[..end], &name));
                    let mut set = set.filter(|variable| env::var_os(variable).is_some());
                    Origin::Environment(set.next().unwrap_or_else(|| variable_of(words, &name)))
                }
                (Some(_), Some(setting)) => Origin::File(self.path.clone(), setting.line),
                (Some(_), None) => Origin::Default,
                (None, _) => Origin::Unset,
            };
            all.push((name, values.join(","), origin));
        }
        if words.is_empty() {
            // It has no option: told is whether it is set, and never what it is.
            let is_set = env::var_os(PASSWORD).is_some_and(|password| !password.is_empty());
            let set = ("(hidden)".to_owned(), Origin::Environment(PASSWORD.to_owned()));
            let (value, origin) = if is_set { set } else { (String::new(), Origin::Unset) };
            all.push(("etcd-password".to_owned(), value, origin));
        }
        Ok(all)
    }
}

/// The value that `option` has among `arguments`, wherever it stands before `--`.
pub(crate) fn word_of(arguments: &[OsString], option: &str) -> Option<OsString> {
    let mut words = arguments.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        match word.to_str().and_then(|word| word.strip_prefix(option)) {
            Some("") => return words.next().cloned(),
            Some(rest) => {
                if let Some(value) = rest.strip_prefix('=') {
                    return Some(value.into());
                }
            }
            None => {}
        }
    }
    None
}

/// The user's file, or the machine's.
fn usual_file() -> Result<Option<(PathBuf, String)>, Failure> {
    let home = env::var_os("HOME").filter(|home| !home.is_empty());
    let own = env::var_os("XDG_CONFIG_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| home.map(|home| Path::new(&home).join(".config")));
    let folders = own.into_iter().chain([PathBuf::from("/etc")]);
    for path in folders.map(|folder| folder.join("farleaf/farleaf.toml")) {
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(Failure::unreadable(path.display(), error)),
        }
    }
    Ok(None)
}

/// Options that may be set elsewhere than on the command line.
fn settable(command: &Command) -> impl Iterator<Item = &Arg> {
    let alone = sole_positional(command).map(Arg::get_id);
    command.get_arguments().filter(move |arg| is_settable(arg, alone == Some(arg.get_id())))
}

fn is_settable(arg: &Arg, is_sole_positional: bool) -> bool {
    let is_of_clap = matches!(arg.get_id().as_str(), "help" | "version" | "config");
    let has_name = arg.get_long().is_some() || is_sole_positional;
    has_name && !arg.is_hide_set() && !is_of_clap
}

/// The word that a command takes, if it takes just one.
fn sole_positional(command: &Command) -> Option<&Arg> {
    let mut positionals = command.get_positionals();
    let first = positionals.next()?;
    let is_alone = positionals.next().is_none() && command.get_subcommands().next().is_none();
    is_alone.then_some(first)
}

fn name_of(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().to_string(), str::to_owned)
}

fn variable_of(words: &[String], name: &str) -> String {
    let parts = ["farleaf"].into_iter().chain(words.iter().map(String::as_str)).chain([name]);
    parts.collect::<Vec<_>>().join("_").replace('-', "_").to_uppercase()
}

fn command_at<'a>(command: &'a Command, words: &[String]) -> Option<&'a Command> {
    words.iter().try_fold(command, |command, word| command.find_subcommand(word))
}

/// The same, with nothing that must be given.
fn relax(command: Command) -> Command {
    command
        .subcommand_required(false)
        .arg_required_else_help(false)
        .mut_args(|arg| arg.required(false))
        .mut_subcommands(relax)
}

/// A value of the file, as words of the command line.
fn values_of(arg: &Arg, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    let is_flag = !arg.get_action().takes_values();
    let one = |value: &DeValue<'_>| match value {
        DeValue::Boolean(value) => Ok(value.to_string()),
        _ if is_flag => Err(format!("takes true or false, not a {}", value.type_str())),
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        other => Err(format!("takes text or a number, not a {}", other.type_str())),
    };
    match value.get_ref() {
        DeValue::Array(values) if matches!(arg.get_action(), ArgAction::Append) => {
            values.iter().map(|value| one(value.get_ref())).collect()
        }
        DeValue::Array(_) => Err("takes one value, not an array".to_owned()),
        value => Ok(vec![one(value)?]),
    }
}

/// Returns the fault, without advice on how to call the program.
fn brief(error: &clap::Error) -> String {
    let told = error.render().to_string();
    told.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The option that is wrong.
fn option_of(error: &clap::Error) -> Option<String> {
    let told = error.get(ContextKind::InvalidArg)?.to_string();
    told.trim_start_matches('-').split(['=', ' ']).next().map(str::to_owned)
}

/// The variable of the environment that a complaint about the command line is about, if it is about one.
pub(crate) fn blamed_variable(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let name = option_of(error)?;
    if arguments.iter().any(|word| word.to_string_lossy().starts_with(&format!("--{name}"))) {
        return None;
    }
    let end = variable_of(&[], &name).replacen("FARLEAF", "", 1);
    let variables = env::vars_os().filter_map(|(variable, _)| variable.into_string().ok());
    variables
        .into_iter()
        .find(|variable| variable.starts_with("FARLEAF_") && variable.ends_with(&end))
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

fn place(path: &Path, text: &str, at: usize) -> String {
    format!("{}:{}", path.display(), line_of(text, at))
}

/// Returns the environment of servers that this program starts as parts of its own: what is set for servers
/// that stand alone is not for them, nor where this process listens. `None` removes a variable.
pub(crate) fn environment_of_parts() -> Vec<(OsString, Option<OsString>)> {
    let prefixes =
        ["memory", "compute", "redis"].map(|command| variable_of(&[command.to_owned()], ""));
    let is_set = |name: &OsStr| {
        let Some(name) = name.to_str() else { return false };
        let says_where =
            ["_LISTEN", "_ADVERTISE", "_INSECURE_PUBLIC"].iter().any(|end| name.ends_with(end));
        says_where && name.starts_with("FARLEAF_")
            || prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    let removed = env::vars_os().map(|(name, _)| name).filter(|name| is_set(name));
    let none = (CONFIG.into(), Some(OsString::new()));
    removed.map(|name| (name, None)).chain([none]).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn parse(text: &str) -> Result<Config, Failure> {
        Config::parse(&Cli::command(), PathBuf::from("f.toml"), text)
    }

    fn refused(text: &str) -> String {
        parse(text).map(drop).err().map(|error| error.to_string()).unwrap_or_default()
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_file_sets_defaults_that_the_command_line_overrides() {
        let text = "quiet = true\n[memory]\nsize = '8GiB'\nthreads = 3\nhuge-pages = true\n\
            [compute]\npool = 'tcp://127.0.0.1:7000'\ntable = ['a', 'b']\n";
        let config = parse(text).unwrap_or_default();
        let command = config.apply(Cli::command());
        command.clone().debug_assert();
        let matches = command.clone().try_get_matches_from(["farleaf", "memory", "--threads=5"]);
        let matches = matches.unwrap_or_default();
        assert!(matches.get_flag("quiet"));
        let memory = matches.subcommand_matches("memory").cloned().unwrap_or_default();
        assert_eq!(memory.get_one::<usize>("threads"), Some(&5));
        assert!(memory.get_flag("huge_pages"));
        let matches = command.try_get_matches_from(["farleaf", "compute"]).unwrap_or_default();
        let compute = matches.subcommand_matches("compute").cloned().unwrap_or_default();
        let tables = compute.get_many::<String>("table").unwrap_or_default();
        assert_eq!(tables.collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            compute.get_one::<String>("pool").map(String::as_str),
            Some("tcp://127.0.0.1:7000")
        );
    }

    #[test]
    fn what_a_file_cannot_say_is_told_with_its_line() {
        assert!(
            refused("[memory]\n\nsise = 1")
                .contains("f.toml:3: memory has no option sise; did you mean \"size\"?")
        );
        assert!(
            refused("[memroy]\nsize = 1")
                .contains("f.toml:1: there is no command memroy; did you mean \"memory\"?")
        );
        assert!(
            refused("[memory]\nhuge-pages = 1")
                .contains("f.toml:2: huge-pages takes true or false")
        );
        assert!(refused("[memory]\nsize = [1]").contains("f.toml:2: size takes one value"));
        assert!(
            refused("[memory]\nsize = 1979-05-27")
                .contains("f.toml:2: size takes text or a number")
        );
        assert!(refused("[memory\nsize = 1").contains("f.toml:1:"));
        assert!(refused("config = 'x'").contains("has no option config"));
    }

    #[test]
    fn values_are_checked_as_those_of_the_command_line_are() {
        let told = |text: &str| {
            let config = parse(text).unwrap_or_default();
            let checked = config.check(&Cli::command());
            checked.map(drop).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(told("[memory]\nsize = '8GiB'\nhuge-pages = true"), "");
        assert!(told("[memory]\n\nthreads = 'many'").starts_with("f.toml:3: invalid value 'many'"));
        let both = told("[memory]\nfile = 'x'\nhuge-pages = true");
        assert!(both.contains("cannot be used with"), "{both}");
        assert!(told("color = 'blue'").starts_with("f.toml:1: "));
    }

    #[test]
    fn settings_say_where_they_come_from() {
        let config = parse("[memory]\nsize = '8GiB'\n").unwrap_or_default();
        let command = config.apply(Cli::command());
        let all = config.settings(&command, &words(&["memory"])).unwrap_or_default();
        let of = |name: &str| all.iter().find(|(option, _, _)| option == name).cloned();
        let from = Origin::File(PathBuf::from("f.toml"), 2);
        assert_eq!(of("size"), Some(("size".into(), "8GiB".into(), from)));
        assert_eq!(of("servers"), Some(("servers".into(), "1".into(), Origin::Default)));
        assert_eq!(of("file"), Some(("file".into(), String::new(), Origin::Unset)));
        let told = config.settings(&command, &words(&["memroy"])).map(drop);
        assert!(told.is_err_and(|error| error.to_string().contains("memroy")));
    }

    #[test]
    fn options_have_names_in_the_environment() {
        assert_eq!(variable_of(&[], "tls-ca"), "FARLEAF_TLS_CA");
        assert_eq!(variable_of(&words(&["check", "crash"]), "seeds"), "FARLEAF_CHECK_CRASH_SEEDS");
        let command = Config::default().apply(Cli::command());
        let memory = command.find_subcommand("memory");
        let mut lease = memory.into_iter().flat_map(Command::get_arguments);
        let lease = lease.find(|arg| arg.get_long() == Some("lease")).and_then(Arg::get_env);
        assert_eq!(lease, Some(OsStr::new("FARLEAF_MEMORY_LEASE")));
    }
}
