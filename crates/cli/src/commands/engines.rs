//! `farleaf engines`: the designs of index that there are, and their settings.

use clap::Args;
use farleaf::{Engine, KnobDefault, KnobKind};
use serde_json::{Value, json};

use crate::errors::Exit;
use crate::formats;
use crate::output::Console;

/// List the engines, or the settings of one
#[derive(Debug, Args)]
#[command(after_help = "\
Settings are given as --set name=value, as in --set cache=64MiB; in a file of settings as
set = [\"cache=64MiB\"]; in programs as .set(\"cache\", \"64MiB\").")]
pub(crate) struct EnginesArgs {
    /// The engine whose settings to list
    #[arg(value_parser = formats::parse_engine)]
    pub(crate) engine: Option<Engine>,
}

pub(super) fn run(args: &EnginesArgs, console: &mut Console) -> anyhow::Result<Exit> {
    match args.engine {
        Some(engine) => list_settings(engine, console)?,
        None => list_engines(console)?,
    }
    Ok(Exit::Done)
}

fn list_engines(console: &mut Console) -> anyhow::Result<()> {
    if console.args.json {
        for engine in Engine::ALL {
            console.json_line(&described(*engine))?;
        }
        return Ok(());
    }
    let row = |engine: &Engine| {
        let traits: Vec<&str> = engine.traits().names().collect();
        vec![engine.to_string(), traits.join(", "), engine.about().to_owned()]
    };
    console.table(&["engine", "traits", "about"], Engine::ALL.iter().map(row))?;
    Ok(())
}

fn described(engine: Engine) -> Value {
    json!({
        "engine": engine.name(),
        "about": engine.about(),
        "traits": engine.traits().names().collect::<Vec<_>>(),
    })
}

fn list_settings(engine: Engine, console: &mut Console) -> anyhow::Result<()> {
    let groups = [("shape", engine.shape()), ("options", engine.options())];
    if console.args.json {
        let mut told = described(engine);
        for (group, knobs) in &groups {
            told[*group] = knobs.iter().map(knob_json).collect();
        }
        console.json_line(&told)?;
        return Ok(());
    }
    console.note(format_args!("{engine}: {}", engine.about()));
    for ((_, knobs), title) in groups.iter().zip([
        "Shape, fixed when a table is made:",
        "Options, chosen by each compute server when it opens a table:",
    ]) {
        console.note(title);
        console.flush()?;
        let row = |it: &KnobDefault| {
            let KnobDefault { knob, default } = it;
            let unit = knob.kind.unit().unwrap_or_default().to_owned();
            let paper = knob.paper.unwrap_or("-").to_owned();
            let about = match knob.kind {
                KnobKind::Words { .. } => format!("{} ({})", knob.about(), knob.kind),
                _ => knob.about(),
            };
            vec![knob.name.to_owned(), default.clone(), unit, paper, about]
        };
        console.table(&["name", "default", "unit", "paper", "meaning"], knobs.iter().map(row))?;
    }
    Ok(())
}

fn knob_json(it: &KnobDefault) -> Value {
    let KnobDefault { knob, default } = it;
    json!({
        "name": knob.name,
        "default": default,
        "unit": knob.kind.unit(),
        "takes": knob.kind.to_string(),
        "paper": knob.paper,
        "about": knob.about(),
    })
}
