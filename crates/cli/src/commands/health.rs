//! `farleaf health`: asks a serving command for its health, as health checks of containers do.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use ureq::Agent;

use crate::errors::{Exit, Failure};
use crate::listen::socket_address;
use crate::output::Console;

/// Time for the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, Args)]
pub(crate) struct HealthArgs {
    /// The address of the command's --metrics
    #[arg(value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) address: SocketAddr,
}

pub(super) fn run(args: &HealthArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let address = args.address;
    // It asks the address that it is told, whatever proxy the environment names.
    let config = Agent::config_builder()
        .timeout_global(Some(ANSWER_WITHIN))
        .http_status_as_error(false)
        .proxy(None)
        .build();
    let asked = config.new_agent().get(format!("http://{address}/healthz")).call();
    let mut answer = asked.map_err(|error| {
        Failure::unavailable(format!(
            "nothing answers at {address}: {error} (memory, compute and redis do at the address of --metrics)"
        ))
    })?;
    let status = answer.status().as_u16();
    let told = answer.body_mut().read_to_string().unwrap_or_default();
    let told = told.trim();
    match status {
        200 => {}
        503 => return Err(Failure::unavailable(format!("not well: {told}")).into()),
        _ => {
            let why =
                format!("what answers at {address} is no serving command: HTTP status {status}");
            return Err(Failure::unavailable(why).into());
        }
    }
    match console.args.json {
        true => console.json_line(&json!({ "healthy": true }))?,
        false => console.fields(&[("health", told.to_owned())])?,
    }
    Ok(Exit::Done)
}
