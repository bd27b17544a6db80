//! Reports lost connections on stderr while a command waits for its server, so that silence does not look like "no
//! changes".

use abide_client::Link;
use tokio::sync::watch;

use crate::cells;
use crate::global_options::Options;
use crate::output::note;

/// Runs a command, and reports each lost connection and reconnect, and between them failed attempts.
pub(crate) async fn reporting_reconnects<T>(
    link: Link,
    options: &Options,
    command: impl Future<Output = T>,
) -> T {
    let (_never, is_typing) = watch::channel(false);
    reporting_reconnects_unless(is_typing, link, options, command).await
}

/// Like [`reporting_reconnects`], but reports nothing while a person types. A connection that is still lost afterwards is reported then.
pub(crate) async fn reporting_reconnects_unless<T>(
    mut is_typing: watch::Receiver<bool>,
    mut link: Link,
    options: &Options,
    command: impl Future<Output = T>,
) -> T {
    // How many attempts have failed since the connection was lost, and whether the loss was reported.
    let mut failed = None::<u64>;
    let mut is_reported = false;
    tokio::pin!(command);
    loop {
        let is_of_link = tokio::select! {
            // When a connection ends permanently, the command ends with the reason.
            biased;
            done = &mut command => return done,
            () = link.changed() => true,
            Ok(()) = is_typing.changed() => false,
        };
        if is_of_link {
            failed = (!link.connected()).then(|| failed.map_or(0, |attempts| attempts + 1));
        }
        if *is_typing.borrow() {
            continue;
        }
        let url = options.place();
        match (failed, is_reported) {
            (Some(_), false) => note(format!("warning: connection to {url} lost; reconnecting")),
            // Attempts go on for ever, so the lines become rare: they count attempts, and not every one has a line.
            (Some(attempts), true) if is_of_link && attempts.is_power_of_two() => {
                let attempts = cells::pluralize(attempts, "attempt");
                note(format!("warning: no connection to {url} after {attempts}"));
            }
            (None, true) => note(format!("reconnected to {url}")),
            (Some(_), true) | (None, false) => {}
        }
        is_reported = failed.is_some();
    }
}

/// The line on stderr when the server has another history than before.
pub(crate) fn history_notice(options: &Options, what_follows: &str) -> String {
    format!(
        "warning: the history changed at {}: a backup was restored, or another file is served; {}",
        options.place(),
        what_follows
    )
}
