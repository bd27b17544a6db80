//! The counts while they grow.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;

use super::ledger::Counts;
use super::report::kill_line;

/// Two lines at the foot of the terminal; nothing where stderr is none.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    kill: ProgressBar,
}

impl Progress {
    /// Shows so many conversations, unless it is to be silent.
    pub(crate) fn new(conversations: u64, silent: bool) -> Progress {
        let target =
            if silent { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let lines = MultiProgress::with_draw_target(target);
        let bar = lines.add(ProgressBar::new(conversations));
        let kill = lines.add(ProgressBar::new(1));
        bar.set_style(style("  sessions {pos:>4} ▕{bar:12}▏ {len}  {msg}"));
        kill.set_style(style("{msg}"));
        Progress { bar, kill }
    }

    /// Follows the counts for as long as somebody counts.
    pub(crate) async fn follow(self, mut counts: watch::Receiver<Counts>) {
        while counts.changed().await.is_ok() {
            let Counts { sessions, messages, calls, handoffs, .. } = *counts.borrow_and_update();
            self.bar.set_position(sessions);
            self.bar.set_message(format!(
                "messages {messages}  tool calls {calls}  handoffs {handoffs}"
            ));
        }
    }

    /// Tells of the kill, and of the return when it is known.
    pub(crate) fn killed(&self, at_event: i64, back_after_ms: Option<u64>) {
        self.kill.set_message(kill_line(at_event, back_after_ms));
    }

    /// The play is over; what is left is to read the file.
    pub(crate) fn comparing(&self) {
        self.kill.set_message("  comparing the file with what was acknowledged and recorded …");
    }

    /// Clears it away.
    pub(crate) fn clear(&self) {
        self.kill.finish_and_clear();
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    // Both templates are constants of this file; a wrong one would show as a plain bar.
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▉▊▋▌▍▎▏ ")
}
