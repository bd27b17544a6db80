//! The progress bars.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;

use super::ledger::Counts;
use super::report::kill_line;

/// Two lines at the bottom of the terminal; nothing if stderr is not a terminal.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    kill: ProgressBar,
}

impl Progress {
    /// For this many conversations, unless it is silent.
    pub(crate) fn new(conversations: u64, silent: bool) -> Progress {
        let target =
            if silent { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let lines = MultiProgress::with_draw_target(target);
        let bar = lines.add(ProgressBar::new(conversations));
        let kill = lines.add(ProgressBar::new(1));
        bar.set_style(parse_style("  sessions {pos:>4} ▕{bar:12}▏ {len}  {msg}"));
        kill.set_style(parse_style("{msg}"));
        Progress { bar, kill }
    }

    /// Follows the counts until their sender is dropped.
    pub(crate) async fn follow(self, mut counts: watch::Receiver<Counts>) {
        while counts.changed().await.is_ok() {
            let Counts { sessions, messages, calls, handoffs, .. } = *counts.borrow_and_update();
            self.bar.set_position(sessions);
            self.bar.set_message(format!(
                "messages {messages}  tool calls {calls}  handoffs {handoffs}"
            ));
        }
    }

    /// Shows the kill, and the restart once it is complete.
    pub(crate) fn show_kill(&self, at_event: i64, back_after_ms: Option<u64>) {
        self.kill.set_message(kill_line(at_event, back_after_ms));
    }

    /// Shows that the file is being compared.
    pub(crate) fn show_comparison(&self) {
        self.kill.set_message("  comparing the file with what was acknowledged and recorded …");
    }

    /// Removes the progress bars.
    pub(crate) fn clear(&self) {
        self.kill.finish_and_clear();
        self.bar.finish_and_clear();
    }
}

fn parse_style(template: &str) -> ProgressStyle {
    // Both templates are constants of this file; an invalid one would show as a plain bar.
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▉▊▋▌▍▎▏ ")
}
