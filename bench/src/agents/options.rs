//! The options of `agents`.

use std::path::PathBuf;

use clap::Args;

/// Options of `agents`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of concurrent runs in the second part.
    #[arg(long, default_value_t = 10_000)]
    pub(super) crowd: usize,
    /// A short run that only shows that the benchmark works.
    #[arg(long)]
    pub(super) quick: bool,
    /// A document; the table is written between its marks.
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// The folder for the files.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    pub(super) dir: PathBuf,
}
