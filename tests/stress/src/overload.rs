//! Overload of one server: ten thousand connections of which a thousand never read, a reconnect
//! storm after a restart, oversized messages, clients that send one byte per second, and callers
//! that flood the queue.
//!
//! Meanwhile another caller makes calls one after the other. Its response times are compared with
//! those of an idle server, in the same run on the same machine. The server and all of its clients
//! share the machine's processors, so the factor describes a server and clients that are both
//! overloaded.

mod bounds;
mod connection_limit;
mod flood;
mod oversize;
mod queries;
mod slow_senders;
mod stage;
mod storm;

use crate::CheckResult;
use crate::arguments::Arguments;

use stage::{OverloadFixture, OverloadSize};

/// Runs everything, or the subset that fits into CI.
pub(crate) async fn run(mut words: Arguments) -> CheckResult {
    let size = if words.has("share") { OverloadSize::SHARE } else { OverloadSize::WHOLE };
    words.end()?;
    let mut fixture = OverloadFixture::set(size).await?;
    fixture.quiet()?;
    queries::run(&fixture).await?;
    let subscribers = connection_limit::connect_subscribers(&mut fixture).await?;
    storm::run(&mut fixture, subscribers).await?;
    let slow_clients = slow_senders::begin(&fixture).await?;
    oversize::run(&mut fixture).await?;
    flood::run(&mut fixture).await?;
    slow_clients.end().await?;
    fixture.end()
}
