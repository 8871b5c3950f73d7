//! `farleaf config`: shows each setting and its source.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::config::{Config, Origin};
use crate::errors::Exit;
use crate::output::Console;

#[derive(Clone, Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    what: ConfigCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ConfigCommand {
    /// Print the settings of a command, or those that all commands take
    Show(ShowArgs),
}

#[derive(Clone, Debug, Args)]
struct ShowArgs {
    /// The command, as in memory, or check crash
    command: Vec<String>,
    /// Say where each comes from: a variable of the environment, a line of the file, or the default
    #[arg(long)]
    origin: bool,
}

pub(super) fn run(
    args: &ConfigArgs,
    config: &Config,
    configured: &clap::Command,
    console: &mut Console,
) -> anyhow::Result<Exit> {
    let ConfigCommand::Show(ShowArgs { command, origin }) = &args.what;
    let settings = config.settings(configured, command)?;
    match config.path() {
        Some(path) => console.detail(format_args!("the file is {}", path.display())),
        None => console.detail("there is no file"),
    }
    if console.args.json {
        let mut told = Map::new();
        for (name, value, from) in settings {
            let value = if from == Origin::Unset { Value::Null } else { json!(value) };
            let one = json!({ "value": value, "origin": said(&from) });
            told.insert(name, if *origin { one } else { value });
        }
        console.json_line(&Value::Object(told))?;
        return Ok(Exit::Done);
    }
    let row = |(name, value, from)| {
        let value = if from == Origin::Unset { "-".to_owned() } else { value };
        let from = origin.then(|| said(&from));
        [name, value].into_iter().chain(from).collect()
    };
    let header: &[&str] =
        if *origin { &["option", "value", "origin"] } else { &["option", "value"] };
    console.table(header, settings.into_iter().map(row))?;
    Ok(Exit::Done)
}

fn said(origin: &Origin) -> String {
    match origin {
        Origin::Environment(variable) => variable.clone(),
        Origin::File(path, line) => format!("{}:{line}", path.display()),
        Origin::Default => "default".to_owned(),
        Origin::Unset => "not set".to_owned(),
    }
}
