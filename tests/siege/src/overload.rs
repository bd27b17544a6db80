//! Too much of everything, against one server: ten thousand connections of which a thousand never read, all of them
//! back at once after a restart, messages beyond any size, clients that send a byte a second, callers that flood.
//!
//! All the while another caller makes calls, one after the other, and what it waits is held against what it
//! waited when nothing else went on, in the same run on the same machine. The machine's processors are shared by
//! the server and all of its clients, so a factor says how bad it gets when both are overloaded.

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

/// Runs it all, or the share of it that CI has time for.
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
