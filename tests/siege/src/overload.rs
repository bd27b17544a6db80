//! Overload of one server: ten thousand connections of which a thousand never read, a reconnect
//! storm after a restart, oversized messages, clients that send one byte per second, and callers
//! that flood the queue.
//!
//! Meanwhile another caller makes calls one after the other. Its response times are compared with
//! those of an idle server, in the same run on the same machine. The server and all of its clients
//! share the machine's processors, so the factor describes a server and clients that are both
//! overloaded.

mod bounds;
mod crowd;
mod flood;
mod loris;
mod oversize;
mod queries;
mod stage;
mod storm;

use crate::Told;
use crate::words::Words;

use stage::{Size, Stage};

/// Runs everything, or the subset that fits into CI.
pub(crate) async fn run(mut words: Words) -> Told {
    let size = if words.has("share") { Size::SHARE } else { Size::WHOLE };
    words.end()?;
    let mut stage = Stage::set(size).await?;
    stage.quiet()?;
    queries::run(&stage).await?;
    let crowd = crowd::gather(&mut stage).await?;
    storm::run(&mut stage, crowd).await?;
    let lorises = loris::begin(&stage).await?;
    oversize::run(&mut stage).await?;
    flood::run(&mut stage).await?;
    lorises.end().await?;
    stage.end()
}
