//! Reports lost connections on stderr while a command waits for its server, so that silence does not look like "no
//! changes".

use abide_client::Link;

use crate::global_options::Options;
use crate::output::note;

/// Runs a command, and reports each lost connection, failed attempt and reconnect.
pub(crate) async fn reporting_reconnects<T>(
    mut link: Link,
    options: &Options,
    command: impl Future<Output = T>,
) -> T {
    let mut attempt = 0_u64;
    tokio::pin!(command);
    loop {
        tokio::select! {
            // When a connection ends permanently, the command ends with the reason.
            biased;
            done = &mut command => return done,
            () = link.changed() => {}
        }
        note(match (link.connected(), attempt) {
            (true, 0) => continue,
            (true, _) => format!("reconnected to {}", options.url),
            (false, 0) => format!("warning: connection to {} lost; reconnecting", options.url),
            (false, _) => format!("warning: reconnect attempt {attempt} to {} failed", options.url),
        });
        attempt = if link.connected() { 0 } else { attempt + 1 };
    }
}

/// The line on stderr when the server has another history than before.
pub(crate) fn history_notice(options: &Options, what_follows: &str) -> String {
    format!(
        "warning: the history changed at {}: a backup was restored, or another file is served; {}",
        options.url, what_follows
    )
}
