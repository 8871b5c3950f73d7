//! Serving: the log, the HTTP metrics and the word to systemd of all commands that serve.

use std::io;
use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use sd_notify::NotifyState;
use tracing::level_filters::LevelFilter;

use crate::listen::socket_address;
use crate::metrics::{Exposed, MetricsServer};
use crate::one_of::OneOf;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Watching it")]
pub(crate) struct ServingArgs {
    /// Answer GET /metrics (for Prometheus) and /healthz there; port 0 takes a free one. Whoever reaches it
    /// sees counts, no keys and no values
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    metrics: Option<SocketAddr>,
    /// Events that it logs, on standard error
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = OneOf::<LogLevel>::names())]
    log_level: LogLevel,
    /// Form of the log
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = OneOf::<LogFormat>::names())]
    log_format: LogFormat,
}

/// Choice of events that are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    /// Nothing
    Off,
    /// Only what ends it
    Error,
    /// Also refused clients with the reason, and passing trouble
    Warn,
    /// Its beginning and end, too, who was cut off, and what it takes over
    Info,
    /// Every connection's end, too
    Debug,
}

/// Form of an entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line
    Text,
    /// A JSON object a line
    Json,
}

impl ServingArgs {
    /// Logs from now on.
    pub(crate) fn start_log(&self) {
        let level = match self.log_level {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
        };
        let log = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(io::stderr)
            .with_ansi(false)
            .with_target(false);
        match self.log_format {
            LogFormat::Text => log.init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
    }

    /// Tells about `exposed` over HTTP until what is returned is dropped, if that is asked for.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub(crate) fn expose(&self, exposed: impl Exposed) -> anyhow::Result<Option<MetricsServer>> {
        self.metrics.map(|listen| MetricsServer::start(listen, exposed)).transpose()
    }
}

/// Tells systemd, if it has started this process (`Type=notify`), that it serves at `address`.
pub(crate) fn tell_ready(address: Option<&str>) {
    let status =
        address.map_or_else(|| "serves".to_owned(), |address| format!("serves at {address}"));
    tell_systemd(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Tells systemd, if it has started this process, that it ends in order.
pub(crate) fn tell_ending() {
    tell_systemd(&[NotifyState::Stopping, NotifyState::Status("ends")]);
}

fn tell_systemd(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell systemd");
    }
}
