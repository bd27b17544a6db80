//! The progress of a command that walks through the events of a log.

use std::time::Duration;

use abide_schema::Seq;
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;
use crate::global_options::Options;

/// The count is drawn once per this many events: drawing every event would be slower than the verification.
const DRAW_EVERY: i64 = 1_024;

/// The spinner for a walk through the events.
///
/// # Errors
/// Never; the template is a constant.
pub(crate) fn start_spinner(options: &Options) -> Result<ProgressBar, Failure> {
    let spinner = ProgressBar::new_spinner();
    if options.json {
        spinner.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} events").map_err(|why| {
        Failure::usage(format!("the progress bar has no style: {why}"), "report this as a bug")
    })?;
    spinner.set_style(style);
    spinner.enable_steady_tick(Duration::from_millis(200));
    Ok(spinner)
}

/// Draws the count of events from time to time.
pub(crate) fn draw_progress(spinner: &ProgressBar) -> impl FnMut(Seq) {
    let spinner = spinner.clone();
    move |seq| {
        if seq.0 % DRAW_EVERY == 0 {
            spinner.set_position(seq.0.unsigned_abs());
        }
    }
}
