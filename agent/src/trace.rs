//! Traces of runs, derived from rows, with the names of OpenTelemetry; and counters.
//!
//! `metrics` counters for Prometheus · `names` the names · `sink` where traces go · `spans` the spans of a run ·
//! `tracer` the task that sends them.

pub(crate) mod metrics;
pub(crate) mod names;
pub(crate) mod sink;
pub(crate) mod spans;
pub(crate) mod tracer;
