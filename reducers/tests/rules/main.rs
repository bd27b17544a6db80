//! The rules of the built-in reducers, in an engine with a virtual clock: the effects of every reducer, and its refusals
//! with their messages. The responses are part of the protocol.
//!
//! Most tests are scripts ([`abide_tests::script`]). `costs` counts the steps of every reducer, `leases` tests every
//! use of a fencing token; the others are one file for each domain.

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

mod agents;
mod allow;
mod approvals;
mod arguments;
mod cancellation;
mod collections;
mod corrections;
mod costs;
mod depth;
mod exchanges;
mod forged_snapshots;
mod handoffs;
mod health;
mod identities;
mod leases;
mod memory;
mod messages;
mod names;
mod owners;
mod pauses;
mod prompts;
mod retries;
mod runs;
mod scopes;
mod sessions;
mod snapshots;
mod summaries;
mod timers;
mod tool_calls;
mod tools;
mod webhooks;

use expect_test::Expect;

/// Runs a script and compares its output line by line.
fn check(script: &str, expected: Expect) {
    expected.assert_eq(&play(script));
}

/// Runs a script; returns its output.
fn play(script: &str) -> String {
    abide_tests::script::play(abide_reducers::modules, script)
}
