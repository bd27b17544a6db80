//! `abide demo` (being written).
mod fixture;
mod recording;
use crate::failure::Failure;
use crate::options::Options;
/// What.
#[derive(clap::Args, Debug)]
pub(crate) struct Demo {}
pub(crate) async fn run(_: &Options, _: Demo) -> Result<(), Failure> {
    Ok(())
}
