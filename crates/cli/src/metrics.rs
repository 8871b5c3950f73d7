//! Metrics server: answers `/metrics` in the text format of Prometheus, and `/healthz`.
//!
//! It shows counts, never keys or values, and neither encrypts nor authenticates.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Context;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::errors::Failure;

const TEXT: &str = "text/plain; charset=utf-8";
/// The text format of OpenMetrics, which Prometheus reads.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One metric: its name without `farleaf_` and without `_total`, what it says, and its values.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// It only grows.
    pub(crate) is_counter: bool,
    /// Each with its labels.
    pub(crate) values: Vec<(Vec<(&'static str, String)>, u64)>,
}

impl Metric {
    /// A count that only grows.
    pub(crate) fn counter(name: &'static str, help: &'static str) -> Self {
        Metric { name, help, is_counter: true, values: Vec::new() }
    }

    /// A number of now.
    pub(crate) fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Metric { name, help, is_counter: false, values: vec![(Vec::new(), value)] }
    }

    /// Numbers of now, each with its labels.
    pub(crate) fn gauge_family(name: &'static str, help: &'static str) -> Self {
        Metric { name, help, is_counter: false, values: Vec::new() }
    }

    /// One more value.
    #[must_use]
    pub(crate) fn with(mut self, labels: &[(&'static str, &str)], value: u64) -> Self {
        let labels = labels.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        self.values.push((labels, value));
        self
    }
}

/// The paths that can be asked for.
pub(crate) trait Exposed: Send + Sync + 'static {
    /// The numbers of now.
    fn metrics(&self) -> Vec<Metric>;

    /// Returns whether it does its work, or the reason why not.
    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Answers until it is dropped.
pub(crate) struct MetricsServer {
    server: Arc<Server>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens at `listen`; port 0 takes a free one.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub(crate) fn start(listen: SocketAddr, exposed: impl Exposed) -> anyhow::Result<Self> {
        let server = Server::http(listen).map_err(|error| {
            Failure::unavailable(format!("cannot listen on {listen} for metrics: {error}"))
        })?;
        let server = Arc::new(server);
        let address = server.server_addr().to_ip().context("not an IP address")?;
        let asked = Arc::clone(&server);
        let mut registry = Registry::default();
        let exposed = Arc::new(exposed);
        registry.register_collector(Box::new(Collected(Arc::clone(&exposed))));
        let thread = thread::Builder::new()
            .name("farleaf-metrics".to_owned())
            .spawn(move || {
                for request in asked.incoming_requests() {
                    answer(request, &registry, &*exposed);
                }
            })
            .context("cannot start a thread")?;
        Ok(MetricsServer { server, address, thread: Some(thread) })
    }

    /// Returns the address at which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(request: Request, registry: &Registry, exposed: &impl Exposed) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (code, kind, body) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            let mut body = String::new();
            match text::encode(&mut body, registry) {
                Ok(()) => (200, OPEN_METRICS, body),
                Err(error) => (500, TEXT, format!("{error}\n")),
            }
        }
        (Method::Get | Method::Head, "/healthz") => match exposed.health() {
            Ok(()) => (200, TEXT, "ok\n".to_owned()),
            Err(why) => (503, TEXT, format!("{why}\n")),
        },
        (Method::Get | Method::Head, _) => {
            (404, TEXT, "there are /metrics and /healthz\n".to_owned())
        }
        _ => (405, TEXT, "only GET\n".to_owned()),
    };
    let mut response = Response::from_string(body).with_status_code(code);
    if let Ok(header) = Header::from_bytes("Content-Type", kind) {
        response = response.with_header(header);
    }
    // The asker may have gone.
    let _ = request.respond(response);
}

/// Something to be asked at each scrape.
struct Collected<T>(Arc<T>);

impl<T> fmt::Debug for Collected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collected").finish_non_exhaustive()
    }
}

impl<T: Exposed> Collector for Collected<T> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in self.0.metrics() {
            let name = format!("farleaf_{}", metric.name);
            let kind = if metric.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut told = encoder.encode_descriptor(&name, metric.help, None, kind)?;
            let encode = |value: u64, into: MetricEncoder<'_>| match metric.is_counter {
                true => ConstCounter::new(value).encode(into),
                // Beyond 2^63 bytes or pieces of anything there is nothing.
                false => ConstGauge::new(value as i64).encode(into),
            };
            match metric.values.as_slice() {
                [(labels, value)] if labels.is_empty() => encode(*value, told)?,
                values => {
                    for (labels, value) in values {
                        encode(*value, told.encode_family(labels)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Exposed for Fixed {
        fn metrics(&self) -> Vec<Metric> {
            vec![
                Metric::counter("reads", "READs")
                    .with(&[("server", "0")], 7)
                    .with(&[("server", "1")], 9),
                Metric::gauge("bytes", "Bytes \"here\"", 1 << 40),
            ]
        }
    }

    #[test]
    fn metrics_are_told_as_prometheus_reads_them() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Collected(Arc::new(Fixed))));
        let mut told = String::new();
        text::encode(&mut told, &registry).unwrap_or_default();
        let expected = "\
# HELP farleaf_reads READs
# TYPE farleaf_reads counter
farleaf_reads_total{server=\"0\"} 7
farleaf_reads_total{server=\"1\"} 9
# HELP farleaf_bytes Bytes \"here\"
# TYPE farleaf_bytes gauge
farleaf_bytes 1099511627776
# EOF
";
        assert_eq!(told, expected);
    }
}
